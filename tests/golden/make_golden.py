#!/usr/bin/python3
"""Writes gpt2_golden.txt: a small GPT trained by PyTorch, the independent implementation that
tests/zero/golden_parity_test.cc compares with. Needs Debian's python3-torch (1.13):

    /usr/bin/python3 tests/golden/make_golden.py > tests/golden/gpt2_golden.txt

Weights and data are formulas (`mix`, `init`, `tokens` below), so both sides compute them.
Losses and norms are of fp32 training; gradients are of step 1, in fp64, per tensor:
norm, projection on a pseudo-random direction, and eight elements.
"""
import numpy as np
import torch
import torch.nn.functional as F

LAYERS, WIDTH, HEADS, VOCAB, CONTEXT = 2, 48, 3, 67, 32
BATCH, SEQ, STEPS = 3, 24, 20
LR, BETAS, EPS, DECAY, CLIP = 3e-3, (0.9, 0.95), 1e-8, 0.1, 1.0
DATA, DIRECTION = 1000, 2000  # Streams of `mix` beside the tensors' own.


def mix(stream, n):
    """32-bit hash of (stream, 0..n-1): murmur3's finalizer on element + stream * golden ratio."""
    x = (np.arange(n, dtype=np.uint64) + np.uint64(stream * 0x9E3779B9)) & np.uint64(0xFFFFFFFF)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        x ^= x >> np.uint64(shift)
        x = (x * np.uint64(factor)) & np.uint64(0xFFFFFFFF)
    return x


def centred(stream, n):
    """Exact in fp32: 24 bits in [-0.5, 0.5)."""
    return (mix(stream, n) >> np.uint64(8)).astype(np.float64) * 2.0**-24 - 0.5


def tensor_list(tied):
    c = WIDTH
    names = [("wte.weight", (VOCAB, c)), ("wpe.weight", (CONTEXT, c))]
    for i in range(LAYERS):
        for name, shape in (("ln_1.weight", (c,)), ("ln_1.bias", (c,)),
                            ("attn.c_attn.weight", (c, 3 * c)), ("attn.c_attn.bias", (3 * c,)),
                            ("attn.c_proj.weight", (c, c)), ("attn.c_proj.bias", (c,)),
                            ("ln_2.weight", (c,)), ("ln_2.bias", (c,)),
                            ("mlp.c_fc.weight", (c, 4 * c)), ("mlp.c_fc.bias", (4 * c,)),
                            ("mlp.c_proj.weight", (4 * c, c)), ("mlp.c_proj.bias", (c,))):
            names.append((f"h.{i}.{name}", shape))
    names += [("ln_f.weight", (c,)), ("ln_f.bias", (c,))]
    return names if tied else names + [("lm_head.weight", (VOCAB, c))]


def init(index, name, shape):
    """Matrices: +-1/8; biases: +-1/16; norm weights: 1 +- 1/8. Rounded once to fp32."""
    u = centred(index, int(np.prod(shape)))
    if name.endswith(".bias"):
        value = u * 0.125
    elif len(shape) == 1:
        value = 1 + u * 0.25
    else:
        value = u * 0.25
    return torch.tensor(value.astype(np.float32)).reshape(shape)


def tokens(step):
    """Skewed towards small tokens, so that there is something to learn; some targets masked."""
    h = mix(DATA + step, BATCH * (SEQ + 1))
    t = ((h >> np.uint64(4)) % VOCAB) * ((h >> np.uint64(16)) % VOCAB) // VOCAB
    t = torch.tensor(t.astype(np.int64)).reshape(BATCH, SEQ + 1)
    x, y = t[:, :-1].clone(), t[:, 1:].clone()
    masked = torch.tensor((h % 13 == 0).astype(np.int64)).reshape(BATCH, SEQ + 1)[:, 1:] == 1
    y[masked] = -1
    return x, y


def loss_of(w, x, y, tied):
    def norm(h, name):
        return F.layer_norm(h, (WIDTH,), w[name + ".weight"], w[name + ".bias"], 1e-5)

    def linear(h, name):
        return h @ w[name + ".weight"] + w[name + ".bias"]

    def heads(h):
        return h.reshape(BATCH, SEQ, HEADS, WIDTH // HEADS).transpose(1, 2)

    h = w["wte.weight"][x] + w["wpe.weight"][:SEQ]
    causal = torch.ones(SEQ, SEQ, dtype=torch.bool).tril()
    for i in range(LAYERS):
        p = f"h.{i}."
        q, k, v = (heads(t) for t in linear(norm(h, p + "ln_1"), p + "attn.c_attn").split(WIDTH, 2))
        scores = (q @ k.transpose(2, 3)) / (WIDTH // HEADS) ** 0.5
        a = scores.masked_fill(~causal, float("-inf")).softmax(-1) @ v
        h = h + linear(a.transpose(1, 2).reshape(BATCH, SEQ, WIDTH), p + "attn.c_proj")
        f = linear(norm(h, p + "ln_2"), p + "mlp.c_fc")
        g = 0.5 * f * (1 + torch.tanh((2 / np.pi) ** 0.5 * (f + 0.044715 * f**3)))
        h = h + linear(g, p + "mlp.c_proj")
    logits = norm(h, "ln_f") @ w["wte.weight" if tied else "lm_head.weight"].T
    return F.cross_entropy(logits.reshape(-1, VOCAB), y.reshape(-1), ignore_index=-1)


def weights(tied, dtype):
    return {n: init(i, n, s).to(dtype).requires_grad_()
            for i, (n, s) in enumerate(tensor_list(tied))}


def print_gradients(tied):
    w = weights(tied, torch.float64)
    x, y = tokens(0)
    loss_of(w, x, y, tied).backward()
    for i, (name, p) in enumerate(w.items()):
        g = p.grad.reshape(-1).numpy()
        if name.endswith("c_attn.bias"):  # The keys' bias has no gradient in theory.
            g = np.concatenate([g[:WIDTH], np.zeros(WIDTH), g[2 * WIDTH:]])
        projection = float(g @ centred(DIRECTION + i, g.size))
        picked = [g[j * g.size // 8] for j in range(8)]
        print("grad", name, *(repr(float(v)) for v in [np.linalg.norm(g), projection, *picked]))


def print_training(tied):
    w = weights(tied, torch.float32)
    optimizer = torch.optim.AdamW(w.values(), LR, BETAS, EPS, DECAY)
    for step in range(STEPS):
        x, y = tokens(step)
        optimizer.zero_grad()
        loss = loss_of(w, x, y, tied)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(w.values(), CLIP)
        optimizer.step()
        print("step", step, repr(float(loss.detach())), repr(float(norm)))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for is_tied in (True, False):
        print("case", "tied" if is_tied else "untied")
        print_gradients(is_tied)
        print_training(is_tied)
