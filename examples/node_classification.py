"""GATv2Conv and QuaternionConv in one PyTorch Geometric model: python examples/node_classification.py [SEEDS]"""

import sys
import time

import torch
from sklearn.datasets import load_digits
from torch_geometric.data import Data
from torch_geometric.nn import GATv2Conv, Sequential

from quatsphere import QuaternionConv, knn

images, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))  # 1,797 scans of 8 x 8 pixels
sources = knn(images, 10)  # each scan is joined to the 10 most similar ones
edges = torch.stack((sources.flatten(), torch.arange(len(images)).repeat_interleave(10)))
graph = Data(x=images.float() / 16, edge_index=edges, y=labels)
for seed in range(int(sys.argv[1]) if len(sys.argv) > 1 else 1):
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    known, test = shuffled[:100], shuffled[100:]  # 100 scans have a label
    for Conv in (GATv2Conv, QuaternionConv):
        torch.manual_seed(seed)
        blocks = [(Conv(64, 8, heads=8, dropout=0.2, residual=True), "x, edge_index -> x"), torch.nn.ELU()]
        blocks += [(Conv(64, 8, heads=8, dropout=0.2, residual=True), "x, edge_index -> x"), torch.nn.ELU()]
        model, start = Sequential("x, edge_index", [*blocks, torch.nn.Linear(64, 10)]), time.process_time()
        optimiser = torch.optim.Adam(model.parameters(), lr=0.005, weight_decay=5e-4)
        for _ in range(60):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(model(graph.x, graph.edge_index)[known], graph.y[known]).backward()
            optimiser.step()
        guess = model.eval()(graph.x, graph.edge_index).argmax(-1)
        right = 100 * (guess == labels)[test].float().mean()
        print(f"{Conv.__name__:14} seed {seed}: {right:.2f} % right, {time.process_time() - start:.1f} s of CPU time")
