"""Winners in the generated code: branches, the dispatch among them, and their kernels' config."""
