"""The training objectives: losses.py computes them, settings.py defines their settings in a recipe, without torch."""
