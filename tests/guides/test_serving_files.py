"""The server's files, as the serving guide writes them, are messages that the server reads."""

import re
from pathlib import Path

import pytest

pytest.importorskip("tensorflow_serving")
GUIDE = (Path(__file__).parents[2] / "guides" / "serving.py").read_text()


def written(name):
    return re.search(rf'"{name}"\)\.write_text\("""\\\n(.*?)"""\)', GUIDE, re.DOTALL).group(1)


def batching_parameters():
    """`tensorflow.serving.BatchingParameters`, which the API package leaves out.

    Source: tensorflow_serving/servables/tensorflow/session_bundle_config.proto.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, wrappers_pb2

    file = descriptor_pb2.FileDescriptorProto(name="b.proto", package="test", syntax="proto3")
    file.dependency.append(wrappers_pb2.DESCRIPTOR.name)
    message = file.message_type.add(name="BatchingParameters")
    wrapped = ("max_batch_size", "batch_timeout_micros", "max_enqueued_batches")
    for number, name in enumerate((*wrapped, "num_batch_threads"), 1):
        int64 = ".google.protobuf.Int64Value"
        message.field.add(name=name, number=number, label=1, type=11, type_name=int64)
    message.field.add(name="allowed_batch_sizes", number=6, label=3, type=3)
    message.field.add(name="pad_variable_length_inputs", number=7, label=1, type=8)
    pool = descriptor_pool.Default()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("test.BatchingParameters"))


def test_model_config():
    from google.protobuf import text_format
    from tensorflow_serving.config import model_server_config_pb2

    config = model_server_config_pb2.ModelServerConfig()
    text_format.Parse(written("models.config"), config)
    (model,) = config.model_config_list.config
    place = (model.name, model.base_path, model.model_platform)
    assert place == ("digits", "/models/digits", "tensorflow")
    assert list(model.model_version_policy.specific.versions) == [1]
    assert dict(model.version_labels) == {"stable": 1}


def test_batching_parameters():
    from google.protobuf import text_format

    parameters = text_format.Parse(written("batching.config"), batching_parameters()())
    sizes = list(parameters.allowed_batch_sizes)
    assert sizes == sorted(sizes)  # as the server demands, and the last the largest
    assert sizes[-1] == parameters.max_batch_size.value == 32
