"""A Go policy whose moves turn and flip with the board.

python examples/go_board.py [STEPS]
"""

import sys

import torch
from torch import nn

import quarterturn as qt
from quarterturn_lab.data.go_positions import positions

SIDE = 9


def main(steps: int = 300) -> None:
    torch.manual_seed(0)
    planes, moves = (torch.from_numpy(part) for part in positions(min(1000, 40 * steps) + 200, SIDE))
    layers = [nn.Conv2d(3, 64, 3, padding=1), nn.ReLU()]
    for _ in range(3):
        layers += [nn.Conv2d(64, 64, 3, padding=1), nn.ReLU()]
    net = qt.convert(nn.Sequential(*layers, nn.Conv2d(64, 1, 1)), qt.D4, example=planes[:2])
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    for step in range(steps):
        batch = torch.randint(len(planes) - 200, (40,))
        loss = -(net(planes[batch]).flatten(1).log_softmax(1) * moves[batch]).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step}: loss {loss:.3f}")
    boards, wanted = planes[-200:], moves[-200:]
    with torch.no_grad():
        taken = boards[:, :2].sum(1).flatten(1) > 0
        best = net(boards).flatten(1).masked_fill(taken, -torch.inf).argmax(1)
    print(f"{(wanted.gather(1, best[:, None]) > 0).float().mean():.1%} of new positions: a move of the rule")
    qt.assert_equivariant(net.double(), qt.D4, boards[:2].double())


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
