"""Reads what stmaml exported, with NumPy and onnxruntime alone: Exported("shops.onnx").predict(asked, labelled)."""

import json
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import onnxruntime


class Exported:
    """A learner, or one adapted group. Rows are dictionaries of one group, such as csv.DictReader gives."""

    def __init__(self, path):
        self.about = json.loads(Path(path).with_suffix(".json").read_text())
        self.session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def predict(self, asked, labelled=(), **how):
        """Arrays about the asked rows of a table, by the labelled rows that have a target."""
        columns, target = self.about["columns"], self.about["column"]
        known = [(row, y) for row in labelled if (y := self._cell(row, target)) != target["gone"]]
        sets = (asked, [row for row, _ in known])
        x = [[[n for column in columns for n in self._cell(row, column)] for row in rows] for rows in sets]
        return self.run(x[0], x[1], [y for _, y in known], **how)

    def run(self, query_x, support_x=(), support_y=(), *, seed=0, noise=None):
        """The same for arrays. Sets of any size are thinned out, padded with rows of weight 0, or asked in turns."""
        kinds = {"tensor(float)": np.float32, "tensor(int32)": np.int32}
        feed = {each.name: np.zeros(each.shape, kinds[each.type]) for each in self.session.get_inputs()}
        kept = np.linspace(0, len(support_x) - 1, min(len(support_x), self.about["labelled"])).round().astype(int)
        for i, row in enumerate(kept):
            feed["support_x"][i], feed["support_weight"][i] = support_x[row], 1
            feed["support_y"][i] = np.reshape(support_y[row], feed["support_y"][i].shape)
        if "noise" in feed:
            fresh = np.random.default_rng(seed).standard_normal(len(feed["noise"]))
            feed["noise"][:] = fresh if noise is None else noise
        names, size, turns = [each.name for each in self.session.get_outputs()], self.about["asked"], []
        for first in range(0, len(query_x), size):
            count = min(size, len(query_x) - first)
            feed["query_x"][:count], feed["query_x"][count:] = query_x[first : first + count], 0
            if "query_weight" in feed:
                feed["query_weight"][:] = np.arange(size) < count
            found = zip(names, self.session.run(None, feed), strict=True)
            turns.append({name: np.moveaxis(np.asarray(v), int(name == "quantiles"), 0)[:count] for name, v in found})
        joined = {name: np.concatenate([turn[name] for turn in turns]) for name in names}
        return {name: np.moveaxis(value, 0, int(name == "quantiles")) for name, value in joined.items()}

    def _cell(self, row, column):
        """The numbers that a cell becomes: by its word, or scaled."""
        text = str("" if row.get(column["name"]) is None else row[column["name"]]).strip()
        number, absent = _tried(float, text), column.get("absent", self.about["absent"])
        if text.lower() in absent or text in self.about["missing"] or number in self.about["codes"]:
            return column["gone"]
        if (words := column.get("words")) is not None:
            whole = repr(number).removesuffix(".0") if column["numbers"] and number is not None else text
            found = words.get(text.lower() if column["lower"] else whole, column["other"])
            if found is None:
                raise ValueError(f"{column['name']} has {text!r}, which training did not have")
            return found
        value = _tried(_days, text, column["format"], column.get("zoned")) if "format" in column else number
        if value is None or not np.isfinite(value):
            return column["gone"]
        scaled = float(np.clip((value - column["mean"]) / column["std"], -column["most"], column["most"]))
        angles = [2 * np.pi * value * rate for rate in column["rates"]]
        return [scaled, *(float(wave(angle)) for angle in angles for wave in (np.sin, np.cos)), *column["flag"]]


def _days(text, form, zoned):
    moment = (form and _tried(datetime.strptime, text, form)) or datetime.fromisoformat(text)
    if ":" in text and zoned not in (None, moment.tzinfo is not None):
        raise TypeError(f"{text!r} must have {'a' if zoned else 'no'} zone, as moments in training")
    return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() / 86400


def _tried(read, *given):
    try:
        return read(*given)
    except ValueError:
        return None
