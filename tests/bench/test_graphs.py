"""The benchmark of graph layers: same graph for every contender, rows, and the missing package."""

from __future__ import annotations

import builtins
from typing import Any

import pytest
import torch

from quatsphere.bench import graphs, measure
from quatsphere.bench.tables import print_record
from quatsphere.errors import ConfigError


def test_graphs_have_the_promised_edges() -> None:
    for skewed in (False, True):
        edges = graphs.edge_index(64, 4, skewed)
        assert len(torch.unique(edges, dim=1).T) == edges.shape[1]
        assert (edges[1].diff() >= 0).all()
    degrees = graphs.edge_index(4096, 16, True)[1].bincount(minlength=4096)
    assert 14 < degrees.float().mean() < 18
    assert degrees.max() > 10 * degrees.median()
    assert graphs.graph_cases([], [], None) is graphs.DEFAULT_CASES
    assert graphs.graph_cases([32], [4, 8], 2) == [graphs.GraphCase(32, 4, 2), graphs.GraphCase(32, 8, 2)]
    assert graphs.GraphCase(2 * graphs.DENSE_LIMIT, 4, 1).contenders == list(graphs.CONTENDERS[:3])
    with pytest.raises(ConfigError, match="a graph of 8 nodes has degrees below 8: got 8"):
        graphs.graph_cases([8], [8], None)


def test_rows_of_graphs(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch_geometric")
    settings = measure.BenchSettings(batch=2, rounds=1, memory=False, nodes=[32], degrees=[4])
    record = measure.bench(["graphs"], settings, lambda _: None)
    rows = record["graphs"]
    assert [row["variant"] for row in rows] == list(graphs.CONTENDERS)
    assert all(row["times_best"] == row["best_ms"] / rows[0]["best_ms"] and row["cpu_ms"] > 0 for row in rows)
    assert all(row["faster"] == 1 for row in measure.compare_benchmarks(record, record))
    assert len({name for _, name in dict(measure.rows_by_key(record))}) == 4
    print_record(record)
    assert "QuaternionConv" in capsys.readouterr().out


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    find = builtins.__import__

    def refuse(name: str, *rest: Any) -> Any:
        if name.startswith("torch_geometric"):
            raise ImportError(name)
        return find(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ConfigError, match=r"pip install 'quatsphere\[graphs\]'"):
        graphs.geometric_layer("GATv2Conv")
