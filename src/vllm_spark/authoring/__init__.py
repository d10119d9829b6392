"""Recipes that the toolkit writes: from a checkpoint on a hub or in a folder, and from recipes of other tools."""
