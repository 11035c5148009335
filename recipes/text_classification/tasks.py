"""The nine tasks of GLUE: where their texts stand, and what they are measured by.

Source: Wang et al., "GLUE: A Multi-Task Benchmark and Analysis Platform for Natural Language
Understanding", arXiv 1804.07461. Imports no Keras.
"""

from typing import NamedTuple


class Task(NamedTuple):
    """One task. Columns are those of the published TSV files, features those of TFDS."""

    classes: tuple[str, ...]  # as the files write them, in TFDS' order; none for a regression
    metrics: tuple[str, ...]  # the first one chooses the epoch
    columns: tuple[str, ...]  # of the texts
    label: str  # column of the label
    features: tuple[str, ...]  # of the texts in TFDS
    evaluations: tuple[tuple[str, str], ...] = (("", "dev"),)  # name and file of each dev set
    has_broken_lines: bool = False  # the published file does; they are left out, and counted

    @property
    def outputs(self) -> int:
        """Outputs of the model: one per class, or one number."""
        return len(self.classes) or 1


PAIR = ("sentence1", "sentence2")
ENTAILMENT = ("entailment", "not_entailment")
BINARY = ("0", "1")
ACCURACY = ("accuracy",)
F1 = ("f1", "accuracy")

TASKS = {
    "cola": Task(BINARY, ("matthews_correlation",), ("sentence",), "label", ("sentence",)),
    "sst2": Task(BINARY, ACCURACY, ("sentence",), "label", ("sentence",)),
    "mrpc": Task(BINARY, F1, ("#1 String", "#2 String"), "Quality", PAIR),
    "stsb": Task((), ("pearson", "spearman"), PAIR, "score", PAIR),
    "qqp": Task(
        BINARY,
        F1,
        ("question1", "question2"),
        "is_duplicate",
        ("question1", "question2"),
        has_broken_lines=True,
    ),
    "mnli": Task(
        ("entailment", "neutral", "contradiction"),
        ACCURACY,
        PAIR,
        "gold_label",
        ("premise", "hypothesis"),
        (("", "dev_matched"), ("mismatched", "dev_mismatched")),
    ),
    "qnli": Task(ENTAILMENT, ACCURACY, ("question", "sentence"), "label", ("question", "sentence")),
    "rte": Task(ENTAILMENT, ACCURACY, PAIR, "label", PAIR),
    "wnli": Task(BINARY, ACCURACY, PAIR, "label", PAIR),
}

# CoLA has files of its own, without a header: source, label, author's mark, sentence
COLA_COLUMNS = ("source", "label", "mark", "sentence")
COLA_FILES = {
    "train": "in_domain_train",
    "dev": "in_domain_dev",
    "out_of_domain": "out_of_domain_dev",
}
