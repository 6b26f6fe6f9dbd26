"""LSTM and GRU layers with resets, one number at a time from the definition, in float64."""

import math

import numpy as np


def sigmoid(x):
    if x >= 0.0:
        return 1.0 / (1.0 + math.exp(-x))
    return math.exp(x) / (1.0 + math.exp(x))


def product(weight, row, vector):
    return sum(weight[row][k] * vector[k] for k in range(len(vector)))


def lstm_sequence(gates, weight, hidden, cell, reset, initial_hidden, initial_cell):
    """Return all outputs [T, B, H] and the last cell [B, H]; gates in the order i, f, g, o."""
    rows, batch, width = gates.shape[0], gates.shape[1], weight.shape[1]
    output, last = np.zeros((rows, batch, width)), np.zeros((batch, width))
    for b in range(batch):
        h, c = list(hidden[b]), list(cell[b])
        for t in range(rows):
            if reset[t][b]:
                h, c = list(initial_hidden), list(initial_cell)
            x = [gates[t][b][k] + product(weight, k, h) for k in range(4 * width)]
            for k in range(width):
                i, f = sigmoid(x[k]), sigmoid(x[width + k])
                g, o = math.tanh(x[2 * width + k]), sigmoid(x[3 * width + k])
                c[k] = f * c[k] + i * g
                output[t][b][k] = o * math.tanh(c[k])
            h = list(output[t][b])
        last[b] = c
    return output, last


def gru_sequence(gates, weight, bias, hidden, reset, initial_hidden):
    """Return all outputs [T, B, H]; gates in the order r, z, n."""
    rows, batch, width = gates.shape[0], gates.shape[1], weight.shape[1]
    output = np.zeros((rows, batch, width))
    for b in range(batch):
        h = list(hidden[b])
        for t in range(rows):
            if reset[t][b]:
                h = list(initial_hidden)
            past = [product(weight, k, h) + bias[k] for k in range(3 * width)]
            x = gates[t][b]
            for k in range(width):
                r = sigmoid(x[k] + past[k])
                z = sigmoid(x[width + k] + past[width + k])
                n = math.tanh(x[2 * width + k] + r * past[2 * width + k])
                output[t][b][k] = (1.0 - z) * n + z * h[k]
            h = list(output[t][b])
    return output
