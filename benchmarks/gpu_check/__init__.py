"""Everything that only a machine with a CUDA card can show, measured step by step into one JSON file.

See docs/gpu.md for the plan and the goals, and `python -m benchmarks.gpu_check --list` for the steps.
"""
