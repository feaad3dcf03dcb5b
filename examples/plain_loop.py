"""Train QSV in a plain loop with a DataLoader, autocast and torch.compile: python examples/plain_loop.py"""

import torch
from torch.utils.data import DataLoader, TensorDataset

import quatsphere
from quatsphere.data import load_dataset

digits = load_dataset("digits", max_train_images=256)
images = (digits.train.images / 255 - digits.mean[:, None, None]) / digits.std[:, None, None]
loader = DataLoader(TensorDataset(images, digits.train.labels), batch_size=64, shuffle=True)
model = quatsphere.create_model("qsv", image_size=8, in_channels=1, dim=32, heads=2, base_vertices=16, shells=2)
compiled = torch.compile(model, backend="eager")  # the default backend compiles for a minute

others = dict(model.named_parameters())
quaternions = [others.pop(name) for name in model.parameter_roles()["quaternions"]]  # the first call: two optimisers
optimisers = (quatsphere.RiemannianAdam(quaternions, lr=2.5e-3), torch.optim.AdamW(others.values(), lr=5e-3))
for epoch in range(3):
    for batch, labels in loader:
        with torch.autocast("cpu", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(compiled(batch), labels)
        loss.backward()
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad()
        model.constrain()  # the second call: vertices back onto their shells
    print(f"epoch {epoch + 1}: loss {loss.item():.3f}")
