"""Pages and sections that are built from the records of the proofs in docs/proof."""
