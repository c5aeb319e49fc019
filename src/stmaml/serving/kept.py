"""Adaptations that are kept for later predictions: the newest, as many as fit."""

import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from stmaml.serving.base import Adapted
from stmaml.serving.schema import Refused

MOST = 1000
MOST_BYTES = 256 << 20


@dataclass
class Kept:
    """Adaptations by learner and number; the one that was used longest ago goes first."""

    most: int = MOST
    most_bytes: int = MOST_BYTES
    held: int = 0
    """Bytes of all of them, about."""
    _found: OrderedDict[tuple[str, str], Adapted] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __len__(self) -> int:
        return len(self._found)

    def add(self, learner: str, adapted: Adapted) -> str:
        """Keeps an adaptation and gives its number, which nobody can guess."""
        if adapted.size > self.most_bytes:
            raise Refused("this adaptation is too large to be kept. Adapt and predict in one call.", 413)
        number = secrets.token_urlsafe(12)
        with self._lock:
            self._found[learner, number] = adapted
            self.held += adapted.size
            while len(self._found) > self.most or self.held > self.most_bytes:
                self.held -= self._found.popitem(last=False)[1].size
        return number

    def get(self, learner: str, number: str) -> Adapted:
        """An adaptation, which is now the one used last."""
        with self._lock:
            found = self._found.get((learner, number))
            if found is None:
                raise Refused("there is no such adaptation; it may have made room for newer ones. Adapt again.", 404)
            self._found.move_to_end((learner, number))
            return found

    def drop(self, learner: str, number: str) -> None:
        """Forgets an adaptation."""
        with self._lock:
            found = self._found.pop((learner, number), None)
        if found is None:
            raise Refused("there is no such adaptation.", 404)
        self.held -= found.size
