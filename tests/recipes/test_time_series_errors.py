import keras
import pytest

from recipes.time_series.__main__ import RECIPE
from tests.recipes.command_line import assert_one_error_line

BACKEND = keras.backend.backend()
OTHER = "torch" if BACKEND != "torch" else "jax"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("--attention softmax,linformer", ["linformer", "softmax, linear, gfsa, agf"]),
        ("--attention agf,agf", ["agf,agf", "twice"]),
        ("--attention softmax,", ["''"]),
        ("--seeds 0,one", ["0,one", "whole numbers"]),
        ("--seeds -1", ["-1"]),
        ("--order 0", ["--order", "'0'", "at least 1"]),
        ("--attention agf --alpha -1 --beta -1", ["divides by zero", "alpha=-1.0"]),
        ("--attention agf --filter legendre --alpha 0.5", ["alpha", "legendre"]),
        ("--attention agf --alpha nan", ["alpha", "nan"]),
        ("--attention softmax --order 2", ["--order", "agf and gfsa", "softmax"]),
        ("--attention gfsa --orthogonality-weight 1", ["--orthogonality-weight", "gfsa"]),
        ("--attention softmax --learned-constant", ["--learned-constant", "agf"]),
        ("--published", ["--published", "Handwriting", "Tiny"]),
        ("--learning-rate 0", ["--learning-rate", "above 0"]),
        ("--validation-fraction 1", ["--validation-fraction", "below 1"]),
        ("--dropout 1", ["--dropout"]),
        ("--epochs 2.5", ["--epochs", "2.5"]),
        ("--precision float8", ["--precision", "float8"]),
        ("--unheard-of", ["--unheard-of"]),
        ("--dataset Tinny", ["--data-dir", "Tinny_TRAIN.ts"]),
        (f"--backend {OTHER}", [BACKEND, OTHER]),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(wrong, words, tiny_arguments, tmp_path, capsys):
    output = tmp_path / "output"
    assert_one_error_line(
        RECIPE.main, [*tiny_arguments, "--output", str(output), *wrong.split()], words, capsys
    )
    assert not output.exists()  # found out before anything was trained or written


def test_unknown_archive_name_suggests_a_known_one(tmp_path, capsys):
    assert RECIPE.main(["--dataset", "JapaneseVowel", "--output", str(tmp_path)]) == 2
    assert "did you mean JapaneseVowels?" in capsys.readouterr().err


def test_no_network_is_one_line(tmp_path, capsys, monkeypatch):
    import aeon.datasets

    def no_network(*args, **kwargs):
        raise OSError("Name or service not known\nand more")

    monkeypatch.setattr(aeon.datasets, "load_classification", no_network)
    assert RECIPE.main(["--dataset", "Handwriting", "--output", str(tmp_path)]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("error: the data set Handwriting cannot be loaded")
    assert "--data-dir" in printed
    assert printed.count("\n") == 1


def test_damaged_data_file_is_one_line(tmp_path, tiny_folder, capsys):
    for split in ("TRAIN", "TEST"):
        text = (tiny_folder / f"Tiny_{split}.ts").read_text()
        (tmp_path / f"Tiny_{split}.ts").write_text(text.replace("@data", "@datum"))
    arguments = ["--dataset", "Tiny", "--data-dir", str(tmp_path), "--output", str(tmp_path / "o")]
    assert RECIPE.main(arguments) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("error: the data set Tiny cannot be loaded")
    assert printed.count("\n") == 1


def test_output_that_cannot_be_written(tiny_arguments, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert RECIPE.main([*tiny_arguments, "--output", str(tmp_path / "file" / "inside")]) == 2
    assert "cannot write to --output" in capsys.readouterr().err


@pytest.mark.skipif(BACKEND != "torch", reason="Keras trains on several devices")
def test_distribute_needs_a_backend_that_can(tiny_arguments, tmp_path, capsys):
    output = tmp_path / "output"
    assert RECIPE.main([*tiny_arguments, "--output", str(output), "--distribute"]) == 2
    assert not output.exists()
    printed = capsys.readouterr().err
    assert printed.startswith("error: --distribute")
    assert printed.count("\n") == 1
