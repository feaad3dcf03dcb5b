"""Shells with vertex positions, and the neighbour graphs within and between them.

Graphs depend on positions only and are rebuilt when positions change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from quatsphere.errors import ConfigError
from quatsphere.geometry import neighbours as nb
from quatsphere.geometry import plane, sphere
from quatsphere.kernels import Mixing, resample_vertices
from quatsphere.kernels.neighbour_ops import ReversedTable
from quatsphere.torch_operators import outside_transforms


class Shell(nn.Module):
    """The vertices of one shell, (V, 3) at fixed distances from the centre; positions learned or frozen."""

    roles = {"positions": "positions"}
    rounds_metric: nb.Metric = "angular"
    positions: Tensor
    radius: Tensor

    def __init__(self, positions: Float[Tensor, "v d"], learned: bool) -> None:
        super().__init__()
        if learned:
            self.positions = nn.Parameter(positions)
        else:
            self.register_buffer("positions", positions)
        self.register_buffer("radius", positions.norm(dim=-1, keepdim=True), persistent=False)
        self.mark_projected()

    def extra_repr(self) -> str:
        """Number of vertices, and whether they move."""
        return f"{self.count} vertices, {'learned' if isinstance(self.positions, nn.Parameter) else 'frozen'}"

    @property
    def count(self) -> int:
        """V_l."""
        return self.positions.shape[0]

    def image_coords(self) -> Float[Tensor, "v 2"]:
        """Image coordinates of each vertex in [-1, 1]²; differentiable in the positions."""
        return sphere.lambert_uv(self.positions)

    def directions(self) -> Float[Tensor, "v d"]:
        """Unit vectors from the centre."""
        return sphere.directions(self.positions)

    @torch.no_grad()
    def project_(self) -> None:
        """Project every vertex onto its radius, if any moved: "every vertex lies exactly on its shell's radius"."""
        if self.positions._version != self._projected_version:
            self.positions.mul_(self.radius / self.positions.norm(dim=-1, keepdim=True))
            self.mark_projected()

    def mark_projected(self) -> None:
        """Treat the current positions as projected: `project_` does nothing until they change."""
        self._projected_version = self.positions._version


class FlatShell(Shell):
    """A flat lattice, the control: (V, 2) cell centres, whose positions are their image coordinates; always frozen."""

    rounds_metric = "euclidean"

    def image_coords(self) -> Float[Tensor, "v 2"]:
        """The positions."""
        return self.positions

    def directions(self) -> Float[Tensor, "v d"]:
        """The positions; a plane has no centre."""
        return self.positions

    def project_(self) -> None:
        """Do nothing: positions are frozen."""


class Graph(nn.Module):
    """Edges from a source shell to a target shell, and the interpolation of tokens between them.

    With `others`, for a graph within one shell, no vertex is its own neighbour.
    """

    neighbours: Tensor
    resample_indices: Tensor
    resample_weights: Tensor

    def __init__(self, k: int, metric: nb.Metric, resample: nb.Resample, others: bool = False) -> None:
        super().__init__()
        self.k, self.metric, self.resample_rule, self.others = k, metric, resample, others
        for name in ("neighbours", "resample_indices", "resample_weights"):
            self.register_buffer(name, None, persistent=False)
        self._positions_seen: tuple[object, ...] = ()
        self._resampled_in: tuple[torch.dtype, torch.device] | None = None
        self._reversed: dict[str, ReversedTable] = {}

    def extra_repr(self) -> str:
        """Number of targets, neighbours of each, and the metric."""
        targets = "" if self.neighbours is None else f"{len(self.neighbours)} vertices with "
        return f"{targets}{self.k} neighbours each, {self.metric}"

    def refresh(self, source: Shell, target: Shell) -> None:
        """Rebuild the graph if a position changed since the last call."""
        with outside_transforms() as unwrapped:
            both = [unwrapped(shell.positions) for shell in (target, source)]
            seen = tuple((positions._version, positions.data_ptr()) for positions in both)
            if seen == self._positions_seen:
                return
            targets, sources = (positions.detach() for positions in both)
            if self.others:
                found = nb.nearest_others(targets, self.k, self.metric)
            else:
                found = nb.nearest_neighbours(targets, sources, self.k, self.metric)
            self._set("neighbours", found, source.count)
            constant = self.resample_rule == "index" and self._resampled_in == (sources.dtype, sources.device)
            if source.count != target.count and not constant:
                indices, weights = self._resampling(source, target)
                self._set("resample_indices", indices, source.count)
                self._set_weights(weights)
                self._resampled_in = (sources.dtype, sources.device)
            self._positions_seen = seen

    def _set_weights(self, weights: Tensor) -> None:
        """Set the weights of the resampling, on an accelerator where the old ones were."""
        old = self.resample_weights
        kept = old is not None and not old.is_inference() and weights.device.type != "cpu"
        if kept and (old.shape, old.dtype, old.device) == (weights.shape, weights.dtype, weights.device):
            old.copy_(weights)
        else:
            self.resample_weights = weights

    def _set(self, name: str, table: Tensor, sources: int) -> None:
        """Set a table of rows of the sources.

        On an accelerator its edges are reversed here, once per graph, and a changed table is written where the old one
        was: recorded CUDA graphs read both at fixed addresses.
        """
        if table.device.type == "cpu":
            setattr(self, name, table)
            return
        known = self._reversed.get(name)
        if known is None or known.neighbours is not getattr(self, name) or known.neighbours.is_inference():
            table = table.contiguous()
            setattr(self, name, table)
            self._reversed[name] = ReversedTable(table, sources)
        else:
            known.neighbours.copy_(table)
            known.update()

    def _resampling(self, source: Shell, target: Shell) -> tuple[Tensor, Tensor]:
        """Rows and weights of `interp`; the weights are rounded once, to the precision of the positions."""
        positions = source.positions
        if self.resample_rule == "geometric":
            return nb.geometric_resampling(target.directions(), source.directions())
        indices, weights = nb.index_resampling(source.count, target.count, positions.dtype)
        return indices.to(positions.device), weights.to(positions.device)

    @property
    def mixing(self) -> Mixing | None:
        """Rows and weights of `interp`; None between shells of equal size."""
        return None if self.resample_indices is None else Mixing(self.resample_indices, self.resample_weights)

    def resample(self, x: Float[Tensor, "b s d"]) -> Float[Tensor, "b t d"]:
        """`interp` of eq:residual; the identity between shells of equal size."""
        return x if self.mixing is None else resample_vertices(x, *self.mixing)


class Layout(nn.Module):
    """L shells and their graphs: `within` on the first, `cross[l]` from shell l to l + 1, `last` on the last."""

    shells: Sequence[Shell]
    cross: Sequence[Graph]

    def __init__(
        self,
        shells: Sequence[Shell],
        neighbour_counts: Sequence[int] | None = None,
        resample: nb.Resample = "index",
        self_neighbour: bool = True,
    ) -> None:
        super().__init__()
        self.shells = nn.ModuleList(shells)  # type: ignore[assignment]
        counts = self.vertex_counts
        self.neighbour_counts = list(neighbour_counts or [nb.knn_budget(count) for count in counts])
        others = not self_neighbour
        self._check_counts(counts, self.neighbour_counts, others)
        self.within = Graph(self.neighbour_counts[0], "euclidean", resample, others)
        self.cross = nn.ModuleList(  # type: ignore[assignment]
            Graph(k, "euclidean", resample) for k in self.neighbour_counts[1:]
        )
        self.last = Graph(self.neighbour_counts[-1], shells[-1].rounds_metric, resample, others)
        self.refresh()

    @staticmethod
    def _check_counts(counts: list[int], neighbour_counts: list[int], others: bool) -> None:
        for shell, k in enumerate(neighbour_counts):
            sources = min(counts[max(0, shell - 1)], counts[shell] - others)
            if k > sources:
                what = "other vertices" if others else "vertices"
                raise ConfigError(
                    f"shell {shell + 1} needs k={k} neighbours but a source shell has only {sources} {what}; "
                    f"k must not exceed the vertices: set neighbours={sources} or more base_vertices"
                )

    @property
    def vertex_counts(self) -> list[int]:
        """[V_1, ..., V_L]."""
        return [shell.count for shell in self.shells]

    def image_coords(self) -> Float[Tensor, "v 2"]:
        """Image coordinates of the first shell's vertices."""
        return self.shells[0].image_coords()

    def refresh(self) -> None:
        """Rebuild the graphs whose positions changed. Called by forward, but not under torch.compile."""
        self.within.refresh(self.shells[0], self.shells[0])
        for shell, graph in enumerate(self.cross):
            graph.refresh(self.shells[shell], self.shells[shell + 1])
        self.last.refresh(self.shells[-1], self.shells[-1])

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Layout:
        """Convert; after a change of precision rebuild the graphs, since a cast would keep the old rounding."""
        before = self.shells[0].positions.dtype
        super()._apply(fn, recurse)
        if self.shells[0].positions.dtype != before and not self.shells[0].positions.is_meta:
            self.refresh()
        return self

    def constrain(self) -> None:
        """Project vertices onto their radii and update the graphs; call it after every optimiser step."""
        for shell in self.shells:
            if shell.positions.requires_grad:
                shell.project_()
        self.refresh()


def sphere_shells(base_vertices: int, shells: int, radii: tuple[float, float], learned: bool) -> list[Shell]:
    """The paper's layout: Fibonacci lattices on spheres whose radii fall linearly."""
    counts = sphere.shell_sizes(base_vertices, shells)
    return [
        Shell(sphere.fibonacci_sphere(count, radius), learned)
        for count, radius in zip(counts, sphere.shell_radii(shells, *radii), strict=True)
    ]


def plane_shells(base_vertices: int, shells: int, rows: int) -> list[Shell]:
    """The paper's control: flat lattices of the same sizes."""
    return [FlatShell(plane.flat_lattice(count, rows), False) for count in sphere.shell_sizes(base_vertices, shells)]
