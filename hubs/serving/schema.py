"""The messages between hubs and clients, and their service, as gRPC knows them.

As a ``.proto`` file, this would be the package ``batchkeeper.hubs.v1`` with::

    service Hubs {
      rpc Publish (PublishRequest) returns (PublishReply);
      rpc Subscribe (SubscribeRequest) returns (stream SubscribeReply);
      rpc Consumed (ConsumedRequest) returns (ConsumedReply);
      rpc Close (CloseRequest) returns (CloseReply);
      rpc Unsubscribe (UnsubscribeRequest) returns (UnsubscribeReply);
    }

The first reply of ``Subscribe`` has a ``redirect``, or the ``subscription`` that ``Consumed`` and
``Close`` name. All later ones have messages. The subscriber is connected as long as the stream is.
Names are bytes, because any bytes are a name. ``preferences`` are JSON, as in the store.

An error of the hub has the trailing metadata ``error-bin``, an ``Error``.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

__all__ = ["METHODS", "SERVICE", "messages"]

_PACKAGE: Final = "batchkeeper.hubs.v1"
SERVICE: Final = f"{_PACKAGE}.Hubs"
#: The methods, and whether they answer with a stream.
METHODS: Final = {
    "Publish": False,
    "Subscribe": True,
    "Consumed": False,
    "Close": False,
    "Unsubscribe": False,
}

# The fields of each message, numbered in this order. A later version appends.
_MESSAGES: Final = {
    "Hub": "string address, uint64 incarnation",
    "Attempt": "string reader, uint64 number",
    "Message": "uint64 number, bytes body",
    "Error": "string name, bytes text, bool retriable, string outcome",
    "PublishRequest": "bytes who, bytes topic, bytes body, bool redirected",
    "PublishReply": "Hub redirect, uint64 number, Hub hub",
    "SubscribeRequest": "bytes who, bytes topic, bool redirected, string mode, bytes preferences, "
    "Attempt attempt",
    "SubscribeReply": "Hub redirect, bytes subscription, repeated Message messages",
    "ConsumedRequest": "bytes subscription, uint64 number",
    "ConsumedReply": "",
    "CloseRequest": "bytes subscription",
    "CloseReply": "",
    "UnsubscribeRequest": "bytes who, bytes topic, bool redirected",
    "UnsubscribeReply": "Hub redirect, bool removed",
}


def _made() -> dict[str, Any]:
    """Return the classes of the messages by name."""
    file = descriptor_pb2.FileDescriptorProto(
        name="batchkeeper/hubs/v1/hubs.proto", package=_PACKAGE, syntax="proto3"
    )
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, words in enumerate(filter(None, fields.split(", ")), 1):
            *label, kind, field = words.split()
            made = message.field.add(name=field, number=number)
            made.label = kinds.LABEL_REPEATED if label else kinds.LABEL_OPTIONAL
            if kind in _MESSAGES:
                made.type, made.type_name = kinds.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
            else:
                made.type = kinds.Type.Value(f"TYPE_{kind.upper()}")
    # Not the default pool, which has each name once: two copies of this package may be loaded.
    pool = descriptor_pool.DescriptorPool()
    found = pool.AddSerializedFile(file.SerializeToString())
    return {
        name: message_factory.GetMessageClass(message)
        for name, message in found.message_types_by_name.items()
    }


#: The class of each message by name.
messages: Final = _made()
