#!/usr/bin/env python3
"""Counts how many of the ten nearest neighbours of each sentence an encoder keeps when its weights are quantized on load.

usage: neighbours.py RUNNER MODEL [WEIGHTS...]     WEIGHTS: q8 q4 if none is named; compared with f32

RUNNER is target/debug/examples/run, MODEL a folder such as that of sentence-transformers/all-MiniLM-L6-v2. The sentences
are those of sentences.txt beside this file. Needs nothing but Python.
"""
import json
import os
import subprocess
import sys

COUNT = 10
SENTENCES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sentences.txt")


def vectors(runner, model, weights):
    command = [runner, "embed", "--model", model, "--file", SENTENCES, "--json", "--weights", weights]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def dot(a, b):
    return sum(x * y for x, y in zip(a, b))


def nearest(rows):
    """The numbers of the ten most similar rows of each row, the most similar first."""
    found = []
    for i, row in enumerate(rows):
        scores = sorted((-dot(row, other), j) for j, other in enumerate(rows) if j != i)
        found.append([j for _, j in scores[:COUNT]])
    return found


def main(runner, model, kinds):
    reference = vectors(runner, model, "f32")
    expected = nearest(reference)
    print(f"{len(reference)} sentences, {COUNT} neighbours each")
    for weights in kinds:
        rows = vectors(runner, model, weights)
        found = nearest(rows)
        kept = sum(len(set(a) & set(b)) for a, b in zip(expected, found)) / (COUNT * len(rows))
        first = sum(a[0] == b[0] for a, b in zip(expected, found)) / len(rows)
        cosine = sum(dot(a, b) for a, b in zip(reference, rows)) / len(rows)
        print(f"{weights}: {kept:.1%} of the neighbours kept, {first:.1%} of the first, mean cosine {cosine:.5f}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2], sys.argv[3:] or ["q8", "q4"])
