#!/usr/bin/env python3
"""The text for perplexity: stories that the bundled model tells, sampled at temperature 1.   usage: make_story.py OUT_FILE

Needs torch 2.15.0 and transformers 5.23.0.
"""
import os, sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

src = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../www/public/models/stories260K")
torch.set_num_threads(1)
torch.manual_seed(11)
model, tok = AutoModelForCausalLM.from_pretrained(src, dtype=torch.float32).eval(), AutoTokenizer.from_pretrained(src)
ids = model.generate(torch.full((16, 1), 1), do_sample=True, temperature=1.0, top_k=0, max_new_tokens=250)
stories = [tok.decode(row, skip_special_tokens=True).strip() for row in ids]
open(sys.argv[1], "w").write("\n".join(stories) + "\n")
