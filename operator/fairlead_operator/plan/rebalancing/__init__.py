"""Pure plan of a Rebalance: the proposal, the moves that are due, and the status."""
