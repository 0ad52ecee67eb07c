"""The etcd back end, on the messages, stubs and channels of etcd3 and gRPC."""

from .backend import EtcdBackend, connect

__all__ = ["EtcdBackend", "connect"]
