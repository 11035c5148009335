"""Parameters and multiply-adds of DeiT, CaiT and Swin in published sizes, with each attention.

    python benchmarks/image_models.py
    python benchmarks/image_models.py --models cait-s24 swin-small --attention softmax gfsa
    python benchmarks/image_models.py --models deit-small --image-size 384

Papers call multiply-adds of matrix products FLOPs, for one image. All numbers come from formulas;
the tests hold them against models and against what torch counts. `published` is what the papers
print, for 1000 classes and images of 224 x 224 pixels. The attention is that of all blocks; the
plain attention of CaiT, to which filters are added, is talking heads, and no other attention talks.
"""

from image_costs import ATTENTIONS, model_cost
from measure import Parser, UsageError, add_output, check_folder, positive, run, table

from recipes.common.images.sizes import SIZES

OF_SWIN = ("softmax", "gfsa", "p_laplacian")  # whose scores take the biases of its windows
MILLION, BILLION = 1e6, 1e9


def parse():
    parser = Parser(description=__doc__)
    add = parser.add_argument
    add("--models", nargs="+", choices=list(SIZES), default=list(SIZES))
    add("--attention", nargs="+", choices=ATTENTIONS, default=list(ATTENTIONS))
    add("--image-size", type=positive, default=224, help="side in pixels [224]")
    add("--classes", type=positive, default=1000)
    add_output(parser)
    options = parser.parse_args()
    for name in options.models:
        multiple = SIZES[name].patch * 2 ** max(0, len(SIZES[name].depths) - 1)
        if options.image_size % multiple:
            raise UsageError(
                f"--image-size {options.image_size}: {name} needs a multiple of {multiple}"
            )
    return options


def row_of(name, attention, options):
    """One line of the table."""
    size, data = SIZES[name], {"image": options.image_size, "classes": options.classes}
    cost, plain = (model_cost(size, one, **data) for one in (attention, "softmax"))
    is_published = attention == "softmax" and tuple(data.values()) == (size.image, 1000)
    published = (size.parameters, size.multiply_adds) if is_published else (None, None)
    parameters, multiply_adds = ("" if number is None else str(number) for number in published)
    return {
        "model": name,
        "attention": attention,
        "parameters (M)": f"{cost.parameters / MILLION:.3f}",
        "published": parameters,
        "over plain": f"{cost.parameters - plain.parameters:+d}",
        "multiply-adds (G)": f"{cost.multiply_adds / BILLION:.3f}",
        "published ": multiply_adds,
        "relative to plain": f"{cost.multiply_adds / plain.multiply_adds:.3f}",
    }


def main():
    options = parse()
    check_folder(options)
    settings = {"image size": options.image_size, "classes": options.classes}
    rows = [
        row_of(name, attention, options)
        for name in options.models
        for attention in options.attention
        if SIZES[name].model != "swin" or attention in OF_SWIN
    ]
    text = table(rows, settings)
    print(text)
    file = options.output / f"image_models_{options.image_size}.md"
    file.write_text(text)
    print(f"written to {file}")


if __name__ == "__main__":
    run(main)
