"""TorchInductor: capture graphs, realise candidates, apply plans. Each hook is named in `hooks` and probed at import."""
