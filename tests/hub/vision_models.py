"""Tiny vision models whose attention has a class of its own, and tasks around them.

Side lengths are odd, so that windows at the border are filled up.
"""

from functools import partial

import keras_hub
import numpy as np

from tests.hub.models import WIDTHS

models = keras_hub.models


# Windows of 3 x 3 on maps of 6 x 6, every other one shifted, and then of 3 x 3.
swin = partial(
    models.SwinTransformerBackbone,
    **{"image_shape": (12, 12, 3), "depths": (2, 1), "num_heads": (2, 2)},
    **{"embed_dim": 8, "window_size": 3, "patch_size": 2, "mlp_ratio": 2.0},
)
# Windows of 3 x 3 on a map of 7 x 7.
swin_padded = partial(swin, image_shape=(14, 14, 3), depths=(2,), num_heads=(2,))
# A class token, two registers, and 2 x 3 patches.
dinov3 = partial(
    models.DINOV3Backbone,
    **{"num_layers": 2, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 16},
    **{"patch_size": 4, "image_shape": (8, 12, 3), "num_register_tokens": 2},
)
# Windows of 3 x 3 on a map of 5 x 5, and a layer that sees all of it.
vit_det = partial(
    models.ViTDetBackbone,
    **{"image_shape": (10, 10, 3), "patch_size": 2, "window_size": 3},
    **{"num_layers": 2, "num_heads": 2, "hidden_size": 8, "intermediate_dim": 16},
    **{"num_output_channels": 4, "global_attention_layer_indices": [1]},
)
# Maps of 6 x 6 and 3 x 3; of the two stages, the second is square.
mit = partial(
    models.MiTBackbone,
    **{"image_shape": (12, 12, 3), "num_layers": 2, "hidden_dims": [8, 12]},
    **{"layerwise_depths": [1, 2], "layerwise_num_heads": [2, 2]},
    **{"layerwise_sr_ratios": [2, 1], "max_drop_path_rate": 0.1},
    **{"layerwise_patch_sizes": [3, 3], "layerwise_strides": [2, 2]},
)
mit_square = partial(mit, layerwise_sr_ratios=[1, 1])


def d_fine(**options):
    """Features of 4 x 4 in the encoder, and ten queries of objects in the decoder."""
    backbone = models.HGNetV2Backbone(
        stem_channels=[3, 4, 4],
        stackwise_stage_filters=[[4, 4, 8, 1, 1, 3], [8, 4, 8, 1, 1, 3]],
        apply_downsample=[False, True],
        use_lightweight_conv_block=[False, False],
        depths=[1, 1],
        hidden_sizes=[8, 8],
        embedding_size=4,
        use_learnable_affine_block=True,
        hidden_act="relu",
        image_shape=(None, None, 3),
        out_features=["stage1", "stage2"],
    )
    encoder = {
        **{"encoder_hidden_dim": 8, "encoder_in_channels": [8, 8], "encode_proj_layers": [1]},
        **{"num_attention_heads": 2, "encoder_ffn_dim": 16, "num_encoder_layers": 1},
    }
    decoder = {
        **{"decoder_in_channels": [8, 8], "num_decoder_layers": 2, "decoder_attention_heads": 2},
        **{"decoder_ffn_dim": 16, "decoder_n_points": [2, 2], "eval_idx": -1},
        **{"learn_initial_query": False, "num_queries": 10, "num_denoising": 0, "num_labels": 3},
    }
    settings = {
        **{"hidden_dim": 8, "hidden_expansion": 0.5, "depth_multiplier": 0.5},
        **{"anchor_image_size": (32, 32), "feat_strides": [4, 8], "num_feature_levels": 2},
        **{"lqe_hidden_dim": 8, "num_lqe_layers": 2, "out_features": ["stage1", "stage2"]},
        **{"image_shape": (None, None, 3), "seed": 0},
    }
    return models.DFineBackbone(backbone, **{**encoder, **decoder, **settings, **options})


VISION = {
    "swin": swin,
    "swin_padded": swin_padded,
    "dinov3": dinov3,
    "vit_det": vit_det,
    "mit": mit,
    "mit_square": mit_square,
    "d_fine": d_fine,
}
WHERE = {"mit": "hierarchical_encoder_1"}  # the first stage is not square


def segformer_backbone():
    return models.SegFormerBackbone(mit(), projection_filters=8)


def segformer(backbone=None):
    return models.SegFormerImageSegmenter(backbone or segformer_backbone(), num_classes=3)


def sam_backbone():
    size, width = (16, 16), 8
    return models.SAMBackbone(
        vit_det(image_shape=(*size, 3), num_output_channels=width),
        keras_hub.layers.SAMPromptEncoder(
            hidden_size=width,
            image_embedding_size=(8, 8),
            input_image_size=size,
            mask_in_channels=4,
        ),
        keras_hub.layers.SAMMaskDecoder(
            num_layers=1,
            hidden_size=width,
            intermediate_dim=8,
            num_heads=2,
            embedding_dim=width,
            num_multimask_outputs=2,
            iou_head_depth=2,
            iou_head_hidden_dim=8,
        ),
    )


def sam(backbone=None):
    return models.SAMImageSegmenter(backbone or sam_backbone())


def depth_anything_backbone():
    shape = (24, 24, 3)
    encoder = models.DINOV2Backbone(
        patch_size=4, image_shape=shape, position_embedding_shape=shape, **WIDTHS
    )
    return models.DepthAnythingBackbone(
        encoder,
        reassemble_factors=[1, 0.5],
        neck_hidden_dims=[4, 4],
        fusion_hidden_dim=4,
        head_hidden_dim=4,
        head_in_index=-1,
        feature_keys=["stage1", "stage2"],
    )


def depth_anything(backbone=None):
    return models.DepthAnythingDepthEstimator(
        backbone or depth_anything_backbone(), depth_estimation_type="relative"
    )


TASKS = {
    "swin_classifier": lambda: models.SwinTransformerImageClassifier(swin(), num_classes=3),
    "mit_classifier": lambda: models.MiTImageClassifier(mit(), num_classes=3),
    "segformer": segformer,
    "sam": sam,
    "depth_anything": depth_anything,
}
TASK_WHERE = {"mit_classifier": WHERE["mit"], "segformer": WHERE["mit"]}


def images(model, batch=2, seed=1):
    """Random inputs by name; prompts, too, where the model takes them."""
    generator = np.random.default_rng(seed)
    wanted = model.input if isinstance(model.input, dict) else {"images": model.input}
    found = {}
    for name, tensor in wanted.items():
        shape = [1 if size is None else size for size in tensor.shape[1:]]
        if name == "masks":
            shape = [1, 32, 32, 1]  # four times the map
        if len(shape) == 3 and None in tensor.shape[1:] and shape[-1] == 3:
            shape = [32, 32, 3]
        found[name] = generator.standard_normal((batch, *shape)).astype("float32")
    if "labels" in found:
        found["labels"] = np.ones_like(found["labels"])
    return found
