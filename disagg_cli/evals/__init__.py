"""The GSM8K smoke eval: data, prompts, a streaming client, answers, statistics, a verdict and its files.

`run.run_gsm8k` is the door. Nothing here prints; `cli/eval.py` and `console/eval_view.py` show what it returns.
"""
