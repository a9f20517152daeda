"""The peer: one GPT-2 style training step in PyTorch, f32, as a user would write it. Prints tokens/s (median of the steps)."""
import argparse
import math
import statistics
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, embed, heads, time_):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(embed), nn.LayerNorm(embed)
        self.qkv, self.proj = nn.Linear(embed, 3 * embed), nn.Linear(embed, embed)
        self.fc, self.out = nn.Linear(embed, 4 * embed), nn.Linear(4 * embed, embed)
        self.register_buffer("mask", torch.tril(torch.ones(time_, time_)).view(1, 1, time_, time_) == 0)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in self.qkv(self.ln_1(x)).split(c, 2))
        score = (q @ k.transpose(-2, -1)) / math.sqrt(q.size(-1))
        p = F.softmax(score.masked_fill(self.mask, -math.inf), dim=-1)
        x = x + self.proj((p @ v).transpose(1, 2).reshape(b, t, c))
        h = self.fc(self.ln_2(x))
        h = 0.5 * h * (1 + torch.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h * h * h)))
        return x + self.out(h)


class GPT(nn.Module):
    def __init__(self, vocab, layers, embed, heads, time_):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, embed), nn.Embedding(time_, embed)
        self.blocks = nn.ModuleList(Block(embed, heads, time_) for _ in range(layers))
        self.ln_f = nn.LayerNorm(embed)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, 0, 0.02)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.size(1)))
        for block in self.blocks:
            x = block(x)
        logits = self.ln_f(x) @ self.wte.weight.t()
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.reshape(-1))


def main():
    a = argparse.ArgumentParser()
    for name, value in dict(vocab=50257, layers=12, embed=768, heads=12, batch=4, time=64, steps=5, threads=2).items():
        a.add_argument(f"--{name}", type=int, default=value)
    a = a.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(0)
    model = GPT(a.vocab, a.layers, a.embed, a.heads, a.time)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    data = torch.randint(0, a.vocab, (a.batch, a.time + 1))
    seconds = []
    for _ in range(a.steps + 2):
        start = time.perf_counter()
        loss = model(data[:, :-1], data[:, 1:])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()
        seconds.append(time.perf_counter() - start)
    print(a.batch * a.time / statistics.median(seconds[2:]))


if __name__ == "__main__":
    main()
