"""The gRPC servicers."""
