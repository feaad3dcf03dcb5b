"""GATv2Conv and QuaternionConv in one PyTorch Geometric model: python examples/node_classification.py [SEEDS]"""

import sys
import time

import torch
from sklearn.datasets import load_digits
from torch_geometric.data import Data
from torch_geometric.nn import GATv2Conv

from quatsphere import QuaternionConv, knn

images, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))  # 1,797 scans of 8 x 8 pixels
edges = torch.stack((knn(images, 10).flatten(), torch.arange(len(images)).repeat_interleave(10)))
graph = Data(x=images.float() / 16, edge_index=edges, y=labels)  # each scan is joined to the 10 most similar ones
for seed in range(int(sys.argv[1]) if len(sys.argv) > 1 else 1):
    known, test = torch.randperm(1797, generator=torch.Generator().manual_seed(seed)).split((100, 1697))  # 100 labels
    for Conv in (GATv2Conv, QuaternionConv):
        torch.manual_seed(seed)
        first, second = (Conv(64, 8, heads=8, dropout=0.2, residual=True) for _ in range(2))
        model, start = torch.nn.ModuleList([first, second, torch.nn.Linear(64, 10)]), time.process_time()
        optimiser = torch.optim.Adam(model.parameters(), lr=0.005, weight_decay=5e-4)
        for epoch in range(61):
            model.train(epoch < 60)  # the last pass evaluates
            logits = model[2](second(first(graph.x, graph.edge_index).relu(), graph.edge_index).relu())
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(logits[known], graph.y[known]).backward()
            optimiser.step()
        right = 100 * (logits.argmax(-1) == graph.y)[test].float().mean()
        print(f"{Conv.__name__:14} seed {seed}: {right:.2f} % right, {time.process_time() - start:.1f} s of CPU time")
