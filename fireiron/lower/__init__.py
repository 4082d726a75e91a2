"""From the decomposition tree to a GPU program: the tree walker and passes from IR to IR."""
