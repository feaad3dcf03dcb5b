"""Quaternion attention as a layer for any graph in which every node has k neighbours."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor, nn

from quatsphere.errors import ConfigError
from quatsphere.kernels import quaternion_attention
from quatsphere.nn.extensions import build_routing, build_transport
from quatsphere.nn.field import LearnedBound, NoBound, NoPerturbation, Perturbation, ShellField
from quatsphere.nn.shell_step import to_flat, to_quaternions


class QuaternionAttention(nn.Module):
    """z_i = Σ_j C_ij r_ij ⊗ x_j ⊗ r_ij* with r_ij = q_i* ⊗ q_j, over the k neighbours j of node i (eq:attn-weight).

    With `vertices`, the layer has its own quaternions for that number of nodes: a learned base per node and head and,
    with `perturbed`, a bounded perturbation from the features; optimise `field.base` with `RiemannianAdam`. Without it,
    pass unit quaternions to `forward`. `dim` is 4 * heads * channels. Rules are built-in or registered names; routing
    `geometric` needs positions and is not available here.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        vertices: int | None = None,
        *,
        perturbed: bool = True,
        field_init: str = "near_identity",
        routing: str = "alignment",
        transport: str = "sandwich",
        backend: str = "auto",
    ) -> None:
        super().__init__()
        if heads < 1 or dim < 1 or dim % (4 * heads):
            raise ConfigError(f"dim must be a positive multiple of 4 * heads = {4 * heads}: got {dim}")
        if routing == "geometric":
            raise ConfigError("routing 'geometric' needs positions; use quaternion_attention with directions")
        self.dim, self.heads, self.backend = dim, heads, backend
        self.routing = build_routing(routing, heads, dim // (4 * heads))
        self.transport = build_transport(transport, heads, dim // (4 * heads))
        perturbed = perturbed and vertices is not None
        bound = LearnedBound() if perturbed else NoBound()
        self.field = None if vertices is None else ShellField(vertices, heads, field_init, True, bound)
        self.perturbation = Perturbation(dim, heads, backend=backend) if perturbed else NoPerturbation()

    def forward(
        self,
        x: Float[Tensor, "b s d"],
        neighbours: Int[Tensor, "t k"],
        source_field: Float[Tensor, "*batch s h 4"] | None = None,
        target_field: Float[Tensor, "*batch t h 4"] | None = None,
    ) -> Float[Tensor, "b t d"]:
        """Features (B, S, d) and the indices (T, k) of each target's sources -> (B, T, d).

        Given unit quaternions have shape (B, S, H, 4) or (S, H, 4), real part first; those of the targets, (B, T, H, 4)
        or (T, H, 4), default to the sources', and then T = S.
        """
        if source_field is None:
            source_field = self.own_field(x)
        source_field, target_field = (
            self._batched(q, x) for q in (source_field, source_field if target_field is None else target_field)
        )
        aggregated = quaternion_attention(
            target_field,
            source_field,
            self.transport.prepare(to_quaternions(x, self.heads)),
            neighbours,
            self.routing.beta,
            routing=self.routing.rule,
            transport=self.transport.rule,
            backend=self.backend,
        )
        return to_flat(aggregated).to(x.dtype)

    def own_field(self, x: Float[Tensor, "b v d"]) -> Float[Tensor, "b v h 4"]:
        """The layer's quaternions for these features."""
        if self.field is None:
            raise ConfigError("the layer has no quaternions of its own; pass source_field, or build it with vertices=V")
        if x.shape[1] != len(self.field.base):
            raise ConfigError(f"the layer has quaternions of {len(self.field.base)} nodes: got {x.shape[1]}")
        return self.perturbation.fields(x, self.field, self.field, None)[0]

    @staticmethod
    def _batched(q: Tensor, x: Tensor) -> Tensor:
        return q if q.dim() == 4 else q.expand(x.shape[0], -1, -1, -1)
