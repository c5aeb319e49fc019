"""Settings of ST-MAML, and which of them go together."""

from dataclasses import dataclass, field
from typing import Literal

from stmaml.errors import SettingError, at_least
from stmaml.inner import check_descent
from stmaml.likelihoods import NOISE_MODELS
from stmaml.methods.base import FineTuning, Variational, check_kl_weight
from stmaml.nets.conv import FeatureForm
from stmaml.nets.set_encoder import Encoding
from stmaml.tasks import TaskSpec


@dataclass(frozen=True)
class Gating:
    """How z becomes the gate's logits."""

    gate: Literal["affine", "relu-affine", "set-mlp"] = "affine"
    """An affine map of z, as in the paper; one cut off at 0; or the mean over the support of a network that reads each
    example beside z."""
    gate_hidden: tuple[int, ...] | None = None
    """Hidden widths of a `set-mlp` gate, 80 if not given; the others have none."""

    @property
    def widths(self) -> tuple[int, ...]:
        """Hidden widths of the gate's network."""
        return ((80,) if self.gate_hidden is None else self.gate_hidden) if self.gate == "set-mlp" else ()


@dataclass(frozen=True)
class Adapting:
    """What the inner loop moves beside the weights, and how."""

    adapted: Literal["knowledge", "codes", "mean", "redrawn-mean"] = "knowledge"
    """The gated weights and h, as in the paper; or the plain weights, h and the gate's logits (`codes`); or the plain
    weights and the mean of z, which h and the gate follow, with one draw for all steps (`mean`) or one for each."""
    code_lr: float | None = None
    """Inner step size of h, gate logits or the mean of z; that of the weights if not given."""
    code_clamp: float | None = 10.0
    """Bound on each element of their inner gradient; none if not given."""

    @property
    def moves_mean(self) -> bool:
        """Whether h and the gate follow a mean of z that the inner loop moves."""
        return self.adapted in ("mean", "redrawn-mean")


@dataclass(frozen=True)
class Settings(Variational, FineTuning):
    """All that can be chosen about ST-MAML; `st_maml.Config` builds it."""

    h_size: int = 20
    """Numbers in the augmented feature h."""
    h_layer: int = 0
    """Layer whose inputs h joins: 0 is the raw input, 1 the first hidden layer. For images see `h_form`."""
    h_form: FeatureForm = "shift"
    """How h enters networks for images: it shifts the channels of every block after their normalisation; or it joins
    the inputs of the last layer (head), where it adds the same to the logits of all pictures."""
    head_bias: bool = True
    """Whether the base learner's last layer has a bias."""
    stochastic: bool = True
    """Off: the deterministic form, z is a function of the support set and there is no KL."""
    augment: bool = True
    """Off: the ablation without augmented feature."""
    tailor: bool = True
    """Off: the ablation without gate."""
    prior_draws: int | None = None
    """Beyond the paper: train on the mixture of this many predictors, with z from the prior as at test time, instead of
    on the ELBO. There is no KL then; needs a noise model other than residual."""
    elbo_weight: float = 0.0
    """Beyond the paper: weight of minus the ELBO beside the loss of `prior_draws`. It has each draw of z stand for one
    function, where the mixture alone is content with draws that hedge."""
    point_weight: float = 0.0
    """Beyond the paper: weight of the averaged predictors at each asked input beside the loss of `prior_draws`,
    which is of the query set as a whole. That makes draws differ where a task is open, this makes them agree with what
    is known at each input; it is how predictions are scored."""
    proto_head: bool = False
    """Beyond the paper: on images, start the last layer from the class means of the support's features."""
    encoder: Encoding = field(default_factory=Encoding)
    gate: Gating = field(default_factory=Gating)
    codes: Adapting = field(default_factory=Adapting)

    def check(self, spec: TaskSpec) -> None:
        """Refuses settings that contradict each other or the tasks."""
        codes = self.codes
        check_descent("code", self.inner.inner_lr if codes.code_lr is None else codes.code_lr, codes.code_clamp)
        check_kl_weight(self.kl_weight)
        self._check_images(spec)
        self._check_draws(spec)

    def _check_images(self, spec: TaskSpec) -> None:
        by_class, gate, adapted = self.encoder.reads == "prototypes", self.gate, self.codes.adapted
        if (by_class or self.proto_head) and not (spec.is_image and spec.target == "class"):
            needs = "--proto-head and --reads prototypes need images with class labels"
            raise SettingError(f"{needs}; leave them out for other tasks.")
        if self.proto_head and adapted != "knowledge":
            raise SettingError(f"--proto-head needs --adapted knowledge, since it starts gated; got {adapted}.")
        if by_class and gate.gate == "set-mlp":
            raise SettingError("a set-mlp gate reads labelled examples; choose another --gate for --reads prototypes.")
        if gate.gate_hidden is not None and gate.gate != "set-mlp":
            raise SettingError(f"--gate-hidden is for --gate set-mlp; got {gate.gate}. Set it to None.")
        if spec.is_image and self.h_layer != 0:
            raise SettingError(f"on images --h-form says where h enters, so --h-layer must be 0; got {self.h_layer}.")

    def _check_draws(self, spec: TaskSpec) -> None:
        for flag, value in (("--elbo-weight", self.elbo_weight), ("--point-weight", self.point_weight)):
            if not 0 <= value < float("inf"):
                raise SettingError(f"{flag} must be a number of at least 0; got {value:g}.")
            if self.prior_draws is None and value:
                raise SettingError(f"{flag} goes with --prior-draws; without them the loss is the ELBO alone.")
        if self.prior_draws is None:
            return
        at_least(1, prior_draws=self.prior_draws)
        if not self.stochastic:
            raise SettingError("--prior-draws needs a stochastic z; leave it out for the deterministic form.")
        if spec.target == "real" and spec.noise == "residual":
            choose = f"choose --noise-model {', '.join(name for name in NOISE_MODELS if name != spec.noise)}"
            raise SettingError(f"--prior-draws weighs predictors by their likelihood: {choose}.")
