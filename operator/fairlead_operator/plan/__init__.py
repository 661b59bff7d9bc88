"""Pure: from what should be and what was observed to the next actions and the conditions that say why."""
