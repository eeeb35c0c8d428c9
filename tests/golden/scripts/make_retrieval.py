"""Expected ranking of tests/golden/retrieval by sentence-transformers on the bundled encoder, and its recall.

    python make_retrieval.py [MODEL]

Writes expected.json: for each question the passages from best to worst with their cosines, down to the tenth, and recall@1 and @3.
"""

import json
import sys
from pathlib import Path

from sentence_transformers import SentenceTransformer

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "tests/golden/retrieval"


def main(model):
    encoder = SentenceTransformer(str(model), device="cpu", model_kwargs={"dtype": "float32"})
    passages = json.loads((FOLDER / "passages.json").read_text())
    questions = json.loads((FOLDER / "questions.json").read_text())
    scores = encoder.encode([q["question"] for q in questions]) @ encoder.encode([p["text"] for p in passages]).T
    ranking, found, gap = [], [0, 0], 1.0
    for q, row in zip(questions, scores):
        order = sorted(range(len(row)), key=lambda i: -row[i])
        names = [passages[i]["id"] for i in order]
        found[0] += names[0] == q["answer"]
        found[1] += q["answer"] in names[:3]
        if q["answer"] not in names[:3]:
            print("missed:", q["question"], names[:3])
        gap = min(gap, *(row[order[i]] - row[order[i + 1]] for i in range(10)))
        ranking.append({"question": q["question"], "passages": [[passages[i]["id"], round(float(row[i]), 6)] for i in order[:10]]})
    recall = {"recall@1": round(found[0] / len(questions), 4), "recall@3": round(found[1] / len(questions), 4)}
    print(recall, "smallest gap between neighbours:", float(gap))
    lines = ",\n".join("  " + json.dumps(r) for r in ranking)
    (FOLDER / "expected.json").write_text(f'{{\n "recall@1": {recall["recall@1"]}, "recall@3": {recall["recall@3"]},\n "ranking": [\n{lines}\n ]\n}}\n')


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else ROOT / "www/public/models/words-encoder")
