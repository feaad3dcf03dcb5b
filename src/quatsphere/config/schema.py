"""Settings of a run: frozen dataclasses in the groups `data`, `model`, `optim`, `train`.

Defaults are the paper's (appendix "Default Configuration") unless a field says otherwise. Each model
has its own dataclass with exactly the fields it uses, so a setting that a model lacks is an error, never ignored.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from quatsphere.config.checks import check_types, require, require_at_least, require_finite, require_fractions

LayoutName = Literal["sphere", "plane"]
ResampleMode = Literal["index", "geometric"]
StencilMeaning = Literal["span", "pitch"]


@dataclass(frozen=True)
class ImageConfig:
    """Fields shared by all models: sizes of the input and the output."""

    image_size: int = 32
    """Side of the square input image in pixels; training takes the data's (paper: 32)."""
    in_channels: int = 3
    """Colour channels of the input image; training takes the data's (paper: 3)."""
    num_classes: int = 10
    """Number of classes; training takes the data's (paper: 10, or 100 for CIFAR-100)."""

    def __post_init__(self) -> None:
        check_types(self)
        require_at_least(self, 1, "image_size", "in_channels")
        require_at_least(self, 2, "num_classes")


@dataclass(frozen=True)
class LatticeConfig(ImageConfig):
    """Fields shared by all models on nested lattices: the positions of the vertices."""

    layout: LayoutName = "sphere"
    """Arrangement of the vertices: nested Fibonacci spheres, or flat lattices (the paper's control)."""
    base_vertices: int = 128
    """V_1, vertices on the first shell; shell l has round(V_1 (1 + (l-1)/2)) (paper: 128)."""
    shells: int = 5
    """L, number of nested shells (paper: 5)."""
    outer_radius: float = 1.0
    """Radius of the first shell (paper: 1.0)."""
    inner_radius: float = 0.4
    """Radius of the last shell; radii fall linearly in between (paper: 0.4)."""
    neighbours: int | None = None
    """k on every shell; none takes the budget max(2, 2 floor(log2 V_l)) of each shell (paper)."""
    plane_rows: int = 16
    """Rows of every flat lattice; each shell size must be a multiple (paper is silent; 16 keeps V exact)."""
    wrap_longitude: bool = False
    """Let the sampling stencil wrap around in longitude, for panoramas; read these with --data.fit squash, because a
    crop would cut off the edges that meet (paper: border padding)."""
    resample: ResampleMode = "index"
    """Interpolation of tokens to a shell of another size: along the vertex index (paper) or by position."""
    stencil: StencilMeaning = "span"
    """Meaning of 2/sqrt(V_1): half the side of the 5x5 stencil, or the pitch of its samples (paper is silent)."""
    self_neighbour: bool = True
    """Count a vertex among its own k neighbours within a shell; else the k nearest others (paper is silent)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.shells >= 1, f"shells must be >= 1: got {self.shells}; nearest legal value 1")
        require(self.base_vertices >= 4, f"base_vertices must be >= 4: got {self.base_vertices}; nearest legal value 4")
        require(
            self.neighbours is None or 1 <= self.neighbours <= self.base_vertices,
            f"neighbours must lie in 1..{self.base_vertices}, the vertices of the smallest shell: "
            f"got {self.neighbours}; nearest legal value {min(max(1, self.neighbours or 1), self.base_vertices)}",
        )
        require(
            all(1e-6 <= radius <= 1e6 for radius in (self.outer_radius, self.inner_radius))
            and (self.shells == 1 or self.inner_radius < self.outer_radius),
            "radii must be positive and decrease inwards, between 1e-6 and 1e6: got outer_radius="
            f"{self.outer_radius}, inner_radius={self.inner_radius}; the paper has 1.0 and 0.4",
        )


@dataclass(frozen=True)
class QSVConfig(LatticeConfig):
    """Quat-Sphere-Vision: the paper's model, each part of its kernel a field."""

    EXTENSIBLE = ("routing", "transport")
    # fields whose choices `register_routing` and `register_transport` extend
    name: Literal["qsv"] = "qsv"
    """qsv, attention, resnet20 or linear, each with its own fields (the paper compares the first three)."""
    dim: int = 256
    """Feature dimension d = 4 * heads * channels (paper: 256)."""
    heads: int = 16
    """H, heads; each token carries one quaternion per head (paper: 16)."""
    routing: Literal["alignment", "absolute", "uniform", "geometric"] = "alignment"
    """Weights of the neighbours: softmax of beta Re(r) (paper), of beta |Re(r)|, 1/k, or by geometry."""
    transport: Literal["sandwich", "identity", "one_sided", "projected", "lift", "lower"] = "sandwich"
    """Transport of a message: r x r* (paper), x, r x, a learned linear map per head, q_j x q_j*, or q_i* x q_i."""
    head_mixing: Literal["none", "linear"] = "none"
    """Mixing of the heads of a message: none (paper), or a learned linear map of all d features in each step."""
    field_mode: Literal["learned", "frozen_random", "frozen_identity", "static"] = "learned"
    """The quaternion field: base and perturbation learned (paper), frozen, or learned base alone."""
    field_init: Literal["near_identity", "haar", "aligned"] = "near_identity"
    """Base quaternions at the start: unit of 1 + 0.3 noise, uniform on S^3, or all identity (paper is silent)."""
    bound: Literal["learned", "none"] = "learned"
    """Bound of the perturbation: learned per shell in (0.01, pi/4) (paper), or no bound."""
    zero_init: bool = True
    """Start the perturbation network's last layer at zero (paper: yes)."""
    beta_start: float | None = None
    """Start of beta in the cross-shell steps; none means a zero logit, 0.793 (the paper's probe: 5)."""
    beta_frozen: bool = False
    """Keep beta of the cross-shell steps at its start (the paper's second probe, at 5)."""
    positions: Literal["learned", "frozen"] = "learned"
    """Vertex positions; always frozen on the plane (paper: learned)."""
    rounds: int = 2
    """Within-shell aggregation rounds on the last shell (paper: 2)."""
    pooling: Literal["quaternion", "quaternion_per_head", "mean"] = "quaternion"
    """Quaternion-native softmax pooling (paper) with one weight per vertex or per vertex and head, or the mean."""
    inner_skip: Literal["none", "residual"] = "none"
    """The block after the kernel, with y = Hamilton(z): FFN(y), or y + FFN(y) (paper is silent)."""
    perturbation: Literal["step", "shell"] = "step"
    """Owner of a perturbation network: each step (7, for 0.64M parameters) or each shell (5, the paper's wording)."""
    attention_dropout: float = 0.1
    """Dropout on the routing weights (paper: 0.1)."""
    output_dropout: float = 0.1
    """Dropout on each step's update (paper: 0.1)."""
    backend: Literal["auto", "reference", "factored", "numba_cpu", "triton_gpu"] = "auto"
    """Kernel backend; auto takes the fastest that is exact on this device."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.heads >= 1, f"heads must be >= 1: got {self.heads}; nearest legal value 1")
        block = 4 * self.heads
        nearest = max(block, block * round(self.dim / block))
        require(
            self.dim > 0 and self.dim % block == 0,
            f"dim must equal 4 * heads * channels, a multiple of {block}: got {self.dim}; "
            f"nearest legal value {nearest}",
        )
        require_at_least(self, 0, "rounds")
        if self.beta_start is not None:
            require(
                0.1 < self.beta_start <= 1e6,
                f"beta_start must be > 0.1, the floor of softplus + 0.1, and <= 1e6: got {self.beta_start}",
            )
        require(
            not (self.routing == "geometric" and self.layout == "plane"),
            "routing 'geometric' compares directions on the sphere; use layout 'sphere' or another routing",
        )
        require_fractions(self, "attention_dropout", "output_dropout")

    @property
    def channels(self) -> int:
        """Q, quaternion channels per head."""
        return self.dim // (4 * self.heads)


@dataclass(frozen=True)
class AttentionConfig(LatticeConfig):
    """The matched baseline: dot-product attention on the same graph."""

    name: Literal["attention"] = "attention"
    """qsv, attention, resnet20 or linear, each with its own fields (the paper compares the first three)."""
    dim: int | None = None
    """Width; none solves it from QSV's parameter budget: the largest multiple of 8 within it (paper: 96)."""
    heads: int | None = None
    """Heads; none means 6 where 6 divides dim (paper's size), else head dimension 16 or 8."""
    budget: int | None = None
    """Parameters not to exceed when dim is solved; none means QSV of the same shells and classes (paper)."""
    routing: Literal["softmax", "uniform"] = "softmax"
    """Weights of the neighbours: softmax of query and key (paper's baseline), or 1/k."""
    value: Literal["projected", "identity"] = "projected"
    """The value path: W_V (paper's baseline), or removed (paper's W_V -> identity)."""
    positions: Literal["frozen", "learned"] = "frozen"
    """Vertex positions (paper's baseline: frozen)."""
    rounds: int = 0
    """Extra within-shell steps on the last shell (paper's baseline: none)."""
    attention_dropout: float = 0.0
    """Dropout on the attention weights (paper's baseline: none)."""
    output_dropout: float = 0.0
    """Dropout on each branch (paper's baseline: none)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, 0, "rounds")
        require(self.heads is None or self.heads >= 1, f"heads must be >= 1: got {self.heads}; nearest legal value 1")
        require_at_least(self, 1, "budget", also=" or none")
        if self.dim is not None:
            require_at_least(self, 1, "dim")
            nearest = None if self.heads is None else max(1, round(self.dim / self.heads)) * self.heads
            require(
                self.heads is None or self.dim % self.heads == 0,
                f"dim must be a multiple of heads={self.heads}: got {self.dim}; nearest legal value {nearest}",
            )
        require_fractions(self, "attention_dropout", "output_dropout")


@dataclass(frozen=True)
class ResNet20Config(ImageConfig):
    """ResNet-20 (He et al. 2016, option A), trained under the same pipeline."""

    name: Literal["resnet20"] = "resnet20"
    """qsv, attention, resnet20 or linear, each with its own fields (the paper compares the first three)."""
    width: int = 16
    """Channels of the first stage; the others have two and four times as many (paper: 16)."""

    def __post_init__(self) -> None:
        check_types(self)
        require_at_least(self, 4, "image_size")
        super().__post_init__()
        require_at_least(self, 1, "width")


@dataclass(frozen=True)
class LinearConfig(LatticeConfig):
    """Softmax regression on the samples that the first shell takes of the image: a lower bound for comparisons."""

    name: Literal["linear"] = "linear"
    """qsv, attention, resnet20 or linear, each with its own fields (the paper compares the first three)."""

    @property
    def positions(self) -> str:
        """Vertex positions are frozen."""
        return "frozen"


ModelConfig = QSVConfig | AttentionConfig | ResNet20Config | LinearConfig


@dataclass(frozen=True)
class DataConfig:
    """Images, their split into train, val and test, and their augmentation."""

    name: str = "digits"
    """digits, cifar10, cifar100, folder (class folders), idx (such as MNIST) or a registered name (paper: CIFAR)."""
    root: str | None = None
    """Archive, zip or folder with the files; none searches QUATSPHERE_DATA, then the download folder."""
    val_fraction: float = 0.1
    """Fraction of the training images held out for selection, stratified by content hash (paper: 5,000 of 50,000)."""
    test_fraction: float = 0.2
    """Fraction held out as test set if the source has none (the paper's sets have one)."""
    max_train_images: int | None = None
    """Train on at most this many images, stratified, chosen by content hash; none takes all (paper: all 45,000)."""
    image_size: int | None = None
    """Resize every image to this side; none keeps the data set's own size, folders 32 (paper: 32)."""
    fit: Literal["crop", "squash"] = "crop"
    """Treatment of images that are not square: crop to the centre, or squash both sides (paper's are square)."""
    channels: int | None = None
    """Convert images to 1 (grey) or 3 (RGB) channels; none keeps the data set's own, folders 3 (paper: 3)."""
    crop_pad: int = 4
    """Padding of the random crop in pixels; 0 switches it off (paper: 4)."""
    flip: bool = True
    """Random horizontal flip (paper: yes)."""
    trivial_augment: bool = True
    """TrivialAugmentWide: one random operation of random strength per image (paper: yes)."""
    mixup: float = 0.0
    """Alpha of mixup; 0 switches it off (paper's default: off)."""
    cutmix: float = 0.0
    """Alpha of cutmix; 0 switches it off (paper's default: off)."""
    skip_bad: int = 0
    """Skip up to this many unreadable images of a folder, listing them; more is an error."""

    def __post_init__(self) -> None:
        check_types(self)
        require_fractions(self, "val_fraction", "test_fraction")
        require(self.val_fraction > 0, "val_fraction must be > 0: selection needs validation images")
        require_at_least(self, 1, "max_train_images", "image_size")
        require_at_least(self, 0, "crop_pad", "skip_bad")
        require(self.channels in (None, 1, 3), f"channels must be 1, 3 or none: got {self.channels}")
        require_finite(self, "mixup", "cutmix")


@dataclass(frozen=True)
class OptimConfig:
    """Riemannian Adam for the quaternions, AdamW for all other parameters."""

    peak_lr: float = 1e-3
    """Peak learning rate of AdamW (paper: 1e-3)."""
    weight_decay: float = 0.05
    """AdamW's weight decay on everything but positions (paper: 0.05)."""
    schedule: Literal["one_cycle", "constant"] = "one_cycle"
    """Schedule of AdamW's learning rates: one-cycle cosine (paper), or constant at the peak."""
    warmup: float = 0.1
    """Fraction of the run in which the rate rises (paper: 10 %)."""
    initial_div: float = 10.0
    """Start rate = peak / initial_div (paper: 10)."""
    final_div: float = 100.0
    """End rate = start rate / final_div (paper: 100)."""
    position_lr: float = 5e-5
    """Peak rate of vertex positions, without weight decay (paper: 5e-5)."""
    bound_lr_factor: float = 3.0
    """Rate of the bound logits as a multiple of the base rate (paper: 3)."""
    quaternion_lr: float = 2.5e-3
    """Rate of the quaternions (paper: 2.5e-3)."""
    quaternion_optimizer: Literal["riemannian_adam", "adamw_renormalise"] = "riemannian_adam"
    """Adam in su(2) (paper), or AdamW followed by hard renormalisation (the paper's comparison)."""
    quaternion_schedule: Literal["constant", "annealed"] = "constant"
    """The quaternions' rate: constant (paper), or with the shape of the schedule."""
    repulsion: bool = True
    """Coulomb repulsion of vertices on their shell (paper: on)."""
    repulsion_neighbours: int = 8
    """Neighbours that repel a vertex (paper: 8, 16 on CIFAR-100)."""
    repulsion_every: int = 10
    """Batches between repulsion steps (paper: 10)."""
    repulsion_until: float = 0.4
    """Fraction of the run after which the step has decayed to zero (paper: roughly 40 %)."""
    repulsion_start: float = 0.05
    """First median step as a fraction of the shell's mean spacing (paper is silent)."""

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("peak_lr", "weight_decay", "position_lr", "bound_lr_factor", "quaternion_lr", "repulsion_start"):
            require_finite(self, name)
            require(getattr(self, name) <= 1e6, f"{name} must be <= 1e6, float32 overflows: got {getattr(self, name)}")
        require_finite(self, "initial_div", "final_div", minimum=1.0)
        require_fractions(self, "warmup", "repulsion_until", closed=True)
        require_at_least(self, 1, "repulsion_neighbours", "repulsion_every")


@dataclass(frozen=True)
class TrainConfig:
    """Length, precision and losses of the training, and its checkpoints."""

    epochs: int = 500
    """Epochs at most (paper: 500)."""
    batch_size: int = 128
    """Images per step over all processes (paper: 128)."""
    patience: int | None = 50
    """Stop after this many epochs without improvement; none runs the full horizon (paper: 50; baselines none)."""
    min_delta: float = 1e-4
    """Smallest gain of validation accuracy that counts as an improvement (paper: 1e-4)."""
    label_smoothing: float = 0.1
    """Label smoothing of the cross-entropy (paper: 0.1)."""
    smoothness: float = 1e-3
    """Coefficient of the quaternion smoothness between epochs (paper: 1e-3)."""
    head_diversity: float = 1e-2
    """Coefficient of the head diversity (paper: 1e-2)."""
    head_diversity_pairs: Literal["sum", "mean"] = "sum"
    """Reduction of the head diversity over pairs of heads; the paper writes a sum, its diagnostics fit a mean."""
    beta_penalty: float = 1e-5
    """Coefficient of the L2 penalty on the beta logits (paper: 1e-5)."""
    seed: int = 42
    """Seed of initial weights, data order, augmentation and dropout (paper: 42 and others)."""
    init: str | None = None
    """Start from the weights of a model folder, run or bundled model, as far as their shapes match (paper: none)."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, mps, xpu."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Autocast precision of the matrix products (paper: fp32)."""
    compile: bool = False
    """torch.compile the model (paper: yes; needs a C++ compiler on CPUs, so off unless a preset sets it)."""
    cuda_graph: bool = False
    """Record forward and backward pass as a CUDA graph (paper: no; not yet run on a GPU, see docs/gpu.md)."""
    deterministic: bool = False
    """Bit-identical repetition and resume: fixes and records the thread count."""
    threads: int | None = None
    """CPU threads; none takes torch's choice."""
    checkpoint_steps: int | None = None
    """Steps between checkpoints; none saves by time alone (and always after an epoch that improved)."""
    checkpoint_seconds: float = 300.0
    """Longest time between checkpoints, in seconds."""
    keep_checkpoints: int = 2
    """Checkpoints to keep besides the best (at least 2)."""
    track: Literal["none", "tensorboard", "wandb", "mlflow"] = "none"
    """Also log each epoch's metrics to a tracker (extra `track`, `track-wandb` or `track-mlflow`)."""

    def __post_init__(self) -> None:
        check_types(self)
        require_at_least(self, 1, "epochs", "batch_size")
        require_at_least(self, 2, "keep_checkpoints")
        require_at_least(self, 0, "seed")
        require_at_least(self, 1, "patience", "threads", "checkpoint_steps", also=" or none")
        require(
            re.fullmatch(r"auto|(cpu|cuda|mps|xpu)(:\d+)?", self.device) is not None,
            f"device must be auto, cpu, cuda, mps or xpu, or one by number as in cuda:1: got {self.device!r:.40}",
        )
        require_finite(self, "min_delta", "smoothness", "head_diversity", "beta_penalty")
        require_finite(self, "checkpoint_seconds", minimum=0.1)
        require_fractions(self, "label_smoothing")


@dataclass(frozen=True)
class RunConfig:
    """All settings of a run: the contents of `config.yaml` in a run folder."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=QSVConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
