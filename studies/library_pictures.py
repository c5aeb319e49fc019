"""MAML on images by plain torch and by learn2learn, one task after the other, gradients summed."""

import itertools
import os
from typing import Any

import numpy as np
from libraries import Advance, on_torch
from picture_tasks import INNER_LR, OUTER_LR, ConvSize


def torch_conv(size: ConvSize, tasks: int, *, learning: bool = True) -> Advance:
    """The same network and inner loop in plain torch, one task after the other, gradients summed; or the loss of
    adapted networks alone."""
    import torch
    from torch.nn import functional

    device = on_torch()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    torch.manual_seed(0)
    channels = [3, *[size.channels] * size.blocks]
    features = size.channels * (size.image >> size.blocks) ** 2
    weights = []
    for i, o in itertools.pairwise(channels):
        weights += [(2 / (9 * i)) ** 0.5 * torch.randn(o, i, 3, 3), torch.ones(o), torch.zeros(o)]
    weights += [torch.randn(size.ways, features) / features**0.5, torch.zeros(size.ways)]
    weights = [weight.to(device).requires_grad_() for weight in weights]
    support, query = size.ways * size.shots, size.ways * size.queries
    x = torch.rand(tasks, support + query, 3, size.image, size.image, device=device)
    y = torch.arange(support + query, device=device) % size.ways
    optimizer = torch.optim.Adam(weights, lr=OUTER_LR)

    def loss_of(weights: list, x: Any, y: Any) -> Any:
        for b in range(size.blocks):
            weight, scale, shift = weights[3 * b : 3 * b + 3]
            x = functional.batch_norm(functional.conv2d(x, weight, padding=1), None, None, scale, shift, training=True)
            x = functional.max_pool2d(functional.relu(x), 2)
        return functional.cross_entropy(functional.linear(x.flatten(1), *weights[-2:]), y)

    def advance() -> np.ndarray:
        optimizer.zero_grad()
        total = 0.0
        for task in x:
            tuned = weights
            for _ in range(size.inner_steps):
                grads = torch.autograd.grad(loss_of(tuned, task[:support], y[:support]), tuned, create_graph=learning)
                tuned = [w - INNER_LR * g for w, g in zip(tuned, grads, strict=True)]
            loss = loss_of(tuned, task[support:], y[support:]) / tasks
            if learning:
                loss.backward()
            total += loss.item()
        if learning:
            optimizer.step()
        return np.array([total])

    return advance


def learn2learn_conv(size: ConvSize, tasks: int, *, learning: bool = True) -> Advance:
    """The same network and inner loop by learn2learn's MAML; or the loss of adapted networks alone."""
    import torch
    from learn2learn.algorithms.maml import MAML
    from torch import nn
    from torch.nn import functional

    device = on_torch()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for i, o in itertools.pairwise([3, *[size.channels] * size.blocks]):
        layers += [nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(), nn.MaxPool2d(2)]
    features = size.channels * (size.image >> size.blocks) ** 2
    maml = MAML(nn.Sequential(*layers, nn.Flatten(), nn.Linear(features, size.ways)).to(device), lr=INNER_LR)
    support, query = size.ways * size.shots, size.ways * size.queries
    x = torch.rand(tasks, support + query, 3, size.image, size.image, device=device)
    y = torch.arange(support + query, device=device) % size.ways
    optimizer = torch.optim.Adam(maml.parameters(), lr=OUTER_LR)

    def advance() -> np.ndarray:
        optimizer.zero_grad()
        total = 0.0
        for task in x:
            learner = maml.clone()
            for _ in range(size.inner_steps):
                learner.adapt(functional.cross_entropy(learner(task[:support]), y[:support]))
            loss = functional.cross_entropy(learner(task[support:]), y[support:]) / tasks
            if learning:
                loss.backward()
            total += loss.item()
        if learning:
            optimizer.step()
        return np.array([total])

    return advance
