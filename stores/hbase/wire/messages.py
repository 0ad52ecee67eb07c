"""The messages of HBase's RPC, as few as this client needs.

The names and numbers of messages and fields are those of HBase 2.6 (the module
``hbase-protocol-shaded``). Enums are plain integers here: they look the same on the wire. Optional
fields that this client neither sets nor reads are left out; protobuf passes over them.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

__all__ = ["MESSAGES"]

# A message in each line, with its fields: number, name, type. "*" stands for a repeated field.
_TABLE: Final = """
VersionInfo: 1 version string, 2 url string, 3 revision string, 4 user string, 5 date string,
    6 src_checksum string, 7 version_major uint32, 8 version_minor uint32
UserInformation: 1 effective_user string
ConnectionHeader: 1 user_info UserInformation, 2 service_name string,
    3 cell_block_codec_class string, 5 version_info VersionInfo
CellBlockMeta: 1 length uint32
RequestHeader: 1 call_id uint32, 3 method_name string, 4 request_param bool, 6 priority uint32,
    7 timeout uint32
ExceptionResponse: 1 exception_class_name string, 2 stack_trace string, 3 hostname string,
    4 port int32, 5 do_not_retry bool
ResponseHeader: 1 call_id uint32, 2 exception ExceptionResponse, 3 cell_block_meta CellBlockMeta

NameBytesPair: 1 name string, 2 value bytes
BytesBytesPair: 1 first bytes, 2 second bytes
NameStringPair: 1 name string, 2 value string
ServerName: 1 host_name string, 2 port uint32, 3 start_code uint64
TableName: 1 namespace bytes, 2 qualifier bytes
RegionInfo: 1 region_id uint64, 2 table_name TableName, 3 start_key bytes, 4 end_key bytes,
    5 offline bool, 6 split bool, 7 replica_id int32
RegionLocation: 1 region_info RegionInfo, 2 server_name ServerName, 3 seq_num int64
RegionSpecifier: 1 type int32, 2 value bytes
ColumnFamilySchema: 1 name bytes, *2 attributes BytesBytesPair, *3 configuration NameStringPair
TableSchema: 1 table_name TableName, *2 attributes BytesBytesPair,
    *3 column_families ColumnFamilySchema, *4 configuration NameStringPair

Empty:
GetMetaRegionLocationsResponse: *1 meta_locations RegionLocation
GetActiveMasterResponse: 1 server_name ServerName
GetTableDescriptorsRequest: *1 table_names TableName
GetTableDescriptorsResponse: *1 table_schema TableSchema
CreateTableRequest: 1 table_schema TableSchema, *2 split_keys bytes, 3 nonce_group uint64,
    4 nonce uint64
CreateTableResponse: 1 proc_id uint64

Cell: 1 row bytes, 2 family bytes, 3 qualifier bytes, 4 timestamp uint64, 5 cell_type int32,
    6 value bytes
Result: *1 cell Cell, 2 associated_cell_count int32, 3 exists bool, 5 partial bool
Column: 1 family bytes, *2 qualifier bytes
Comparator: 1 name string, 2 serialized_comparator bytes
Comparable: 1 value bytes
BinaryComparator: 1 comparable Comparable

Get: 1 row bytes, *2 column Column
Condition: 1 row bytes, 2 family bytes, 3 qualifier bytes, 4 compare_type int32,
    5 comparator Comparator
QualifierValue: 1 qualifier bytes, 2 value bytes, 3 timestamp uint64, 4 delete_type int32
ColumnValue: 1 family bytes, *2 qualifier_value QualifierValue
MutationProto: 1 row bytes, 2 mutate_type int32, *3 column_value ColumnValue,
    *5 attribute NameBytesPair
Action: 1 index uint32, 2 mutation MutationProto, 3 get Get
RegionAction: 1 region RegionSpecifier, 2 atomic bool, *3 action Action, 4 condition Condition
MultiRequest: *1 region_action RegionAction
ResultOrException: 1 index uint32, 2 result Result, 3 exception NameBytesPair
RegionActionResult: *1 result_or_exception ResultOrException, 2 exception NameBytesPair,
    3 processed bool
MultiResponse: *1 region_action_result RegionActionResult

Scan: *1 column Column, 3 start_row bytes, 4 stop_row bytes,
    8 cache_blocks bool, 10 max_result_size uint64, 15 reversed bool, 17 caching uint32,
    21 include_start_row bool, 22 include_stop_row bool
ScanRequest: 1 region RegionSpecifier, 2 scan Scan, 3 scanner_id uint64, 4 number_of_rows uint32,
    5 close_scanner bool, 6 next_call_seq uint64, 7 client_handles_partials bool,
    8 client_handles_heartbeats bool, 11 limit_of_rows uint32
ScanResponse: *1 cells_per_result uint32, 2 scanner_id uint64, 3 more_results bool, 4 ttl uint32,
    *5 results Result, *7 partial_flag_per_result bool, 8 more_results_in_region bool,
    9 heartbeat_message bool, 12 cursor Cursor
Cursor: 1 row bytes
"""

_PACKAGE: Final = "batchkeeper.hbase"
_Field: Final = descriptor_pb2.FieldDescriptorProto


class _Messages:
    """The message classes, as attributes."""

    def __init__(self) -> None:
        file = descriptor_pb2.FileDescriptorProto(
            name="batchkeeper/hbase.proto", package=_PACKAGE, syntax="proto2"
        )
        for entry in _TABLE.replace("\n    ", " ").split("\n"):
            name, colon, fields = entry.partition(":")
            if colon:
                self._declare(file.message_type.add(name=name), fields)
        # A pool of its own: the default one accepts a name only once in a process.
        pool = descriptor_pool.DescriptorPool()
        pool.Add(file)
        for message in file.message_type:
            found = pool.FindMessageTypeByName(f"{_PACKAGE}.{message.name}")
            setattr(self, message.name, message_factory.GetMessageClass(found))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"no such message: {name}")

    @staticmethod
    def _declare(message: descriptor_pb2.DescriptorProto, fields: str) -> None:
        for entry in filter(None, map(str.strip, fields.split(","))):
            number, name, kind = entry.split()
            field = message.field.add(
                name=name,
                number=int(number.removeprefix("*")),
                label=_Field.LABEL_REPEATED if number[0] == "*" else _Field.LABEL_OPTIONAL,
            )
            if kind[0].isupper():
                field.type, field.type_name = _Field.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
            else:
                field.type = getattr(_Field, f"TYPE_{kind.upper()}")


#: The messages, each a class of ``google.protobuf``.
MESSAGES: Final = _Messages()
