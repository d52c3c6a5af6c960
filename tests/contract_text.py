"""The public contract as text, one line for each field, value and method, so that a change of it shows in a diff.

Run by `make golden` to write tests/golden/contract.txt; compared by tests/test_contract.py.
"""

import importlib
import pkgutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor, FileDescriptor, ServiceDescriptor

import agentreach.v1

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor

T = TypeVar("T")

FieldType = descriptor_pb2.FieldDescriptorProto.Type


def files() -> list[FileDescriptor]:
    """All files of agentreach.v1, by name."""
    return sorted((module.DESCRIPTOR for module in modules()), key=lambda file: str(file.name))


def modules() -> list[ModuleType]:
    """The generated modules with messages."""
    names = [module.name for module in pkgutil.iter_modules(agentreach.v1.__path__) if module.name.endswith("_pb2")]
    return [importlib.import_module(f"agentreach.v1.{name}") for name in names]


def messages() -> Iterator["Descriptor"]:
    """All messages with their nested ones, those that stand for map entries left out."""
    waiting = [message for file in reversed(files()) for message in reversed(by_name(file.message_types_by_name))]
    while waiting:
        message = waiting.pop()
        if not message.GetOptions().map_entry:
            yield message
            waiting.extend(reversed(by_name(message.nested_types_by_name)))


def fields() -> Iterator[FieldDescriptor]:
    for message in messages():
        yield from message.fields


def enums() -> Iterator[EnumDescriptor]:
    for file in files():
        yield from by_name(file.enum_types_by_name)
    for message in messages():
        yield from by_name(message.enum_types_by_name)


def services() -> Iterator[ServiceDescriptor]:
    for file in files():
        yield from by_name(file.services_by_name)


def by_name(mapping: Mapping[str, T]) -> list[T]:
    return [mapping[name] for name in sorted(mapping)]


def type_text(field: FieldDescriptor) -> str:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        entry = field.message_type.fields_by_name
        return f"map<{type_text(entry['key'])}, {type_text(entry['value'])}>"
    if field.message_type is not None:
        return str(field.message_type.full_name)
    if field.enum_type is not None:
        return str(field.enum_type.full_name)
    return FieldType.Name(FieldType.ValueType(field.type)).removeprefix("TYPE_").lower()


def field_text(field: FieldDescriptor) -> str:
    oneof = field.containing_oneof
    is_map = type_text(field).startswith("map<")
    if oneof is not None and not oneof.name.startswith("_"):
        label = f"oneof {oneof.name} "
    elif oneof is not None:
        label = "optional "
    else:
        label = "repeated " if field.is_repeated and not is_map else ""
    deprecated = " [deprecated]" if field.GetOptions().deprecated else ""
    return f"{field.full_name} = {field.number} {label}{type_text(field)}{deprecated}"


def reserved_text(message: "Descriptor") -> Iterator[str]:
    proto = descriptor_pb2.DescriptorProto()
    message.CopyToProto(proto)
    for span in proto.reserved_range:
        last = span.end - 1
        yield f"{message.full_name} reserved {span.start}" + (f" to {last}" if last > span.start else "")
    for name in proto.reserved_name:
        yield f'{message.full_name} reserved "{name}"'


def lines() -> Iterator[str]:
    for service in services():
        yield f"service {service.full_name}"
        for method in service.methods:
            asks = "stream " * method.client_streaming + str(method.input_type.name)
            answers = "stream " * method.server_streaming + str(method.output_type.name)
            yield f"{method.full_name}({asks}) returns ({answers})"
    for message in messages():
        yield f"message {message.full_name}"
        yield from (field_text(field) for field in sorted(message.fields, key=lambda field: field.number))
        yield from reserved_text(message)
    for enum in enums():
        yield f"enum {enum.full_name}"
        yield from (f"{enum.full_name}.{value.name} = {value.number}" for value in enum.values)


def text() -> str:
    return "".join(f"{line}\n" for line in lines())


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(text())
