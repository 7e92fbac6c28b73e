"""Tests of the augmentation: each operation against Pillow, the law of the draws, the other transforms."""

from collections import Counter
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageOps

from rheobase.training.augmentation import Augmentation
from rheobase.training.augmentation.actions import FILL, Actions, act
from rheobase.training.augmentation.jitter import ColourJitter
from rheobase.training.augmentation.policy import CIFAR10_POLICY, LEVELS, RANGES, SIGNED, find_magnitude
from rheobase.training.augmentation.transforms import AutoAugment, Cutout, Flip, Normalise, RandomCrop
from rheobase.training.datasets.cifar10 import SOURCE as CIFAR10
from rheobase.training.datasets.cifar100 import SOURCE as CIFAR100

CPU = torch.device("cpu")
PAPER = [source.augment(Normalise(source.mean, source.std)) for source in (CIFAR10, CIFAR100)]
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
]


def seed(number, device="cpu"):
    return torch.Generator(device).manual_seed(number)


def make_images(height=32, width=32):
    """Noise, ramps, a few grey levels, one grey level, smooth fields, and extremes with one odd pixel."""
    random = np.random.default_rng(0)
    ramp = np.add.outer(np.arange(height) * 3, np.arange(width) * 4)[..., None] + [0, 20, 40]
    wave = 127 + 120 * np.sin(np.add.outer(np.arange(height) / 5, np.arange(width) / 7))[..., None] * [
        1,
        0.5,
        -1,
    ]
    odd = np.zeros((height, width, 3))
    odd[height // 2, width // 2] = [255, 1, 7]
    images = [
        *random.integers(0, 256, (4, height, width, 3)),
        *random.integers(90, 140, (2, height, width, 3)),
        *random.choice([0, 10, 255], (2, height, width, 3)),
        ramp % 256,
        wave,
        random.normal(128, 20, (height, width, 3)).clip(0, 255),
        np.full((height, width, 3), 77),
        np.zeros((height, width, 3)),
        np.full((height, width, 3), 255),
        odd,
        255 - odd,
    ]
    return torch.from_numpy(np.stack(images).astype(np.uint8)).permute(0, 3, 1, 2).contiguous()


def do_in_pillow(name, level, sign, image):
    """What Pillow makes of one image (3, H, W) with the same operation."""
    picture = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
    magnitude = find_magnitude(name, level, sign)
    width, height = picture.size
    affine = {
        "shear_x": (1, magnitude, 0, 0, 1, 0),
        "shear_y": (1, 0, 0, magnitude, 1, 0),
        "translate_x": (1, 0, magnitude * width, 0, 1, 0),
        "translate_y": (1, 0, 0, 0, 1, magnitude * height),
    }
    enhancers = {
        "color": ImageEnhance.Color,
        "contrast": ImageEnhance.Contrast,
        "brightness": ImageEnhance.Brightness,
        "sharpness": ImageEnhance.Sharpness,
    }
    fill = (FILL,) * 3
    if name in affine:
        result = picture.transform(picture.size, Image.Transform.AFFINE, affine[name], fillcolor=fill)
    elif name in enhancers:
        result = enhancers[name](picture).enhance(1 + magnitude)
    else:
        result = {
            "rotate": lambda: picture.rotate(magnitude, fillcolor=fill),
            "posterize": lambda: ImageOps.posterize(picture, int(magnitude)),
            "solarize": lambda: ImageOps.solarize(picture, magnitude),
            "autocontrast": lambda: ImageOps.autocontrast(picture),
            "equalize": lambda: ImageOps.equalize(picture),
            "invert": lambda: ImageOps.invert(picture),
        }[name]()
    return torch.from_numpy(np.array(result)).permute(2, 0, 1)


@pytest.mark.parametrize("pick", [True, False])
@pytest.mark.parametrize(("height", "width"), [(32, 32), (17, 40)])
@pytest.mark.parametrize("name", RANGES)
def test_every_operation_equals_pillow(name, height, width, pick):
    images = make_images(height, width)
    rows = list(product([name], range(LEVELS), (1, -1)))
    actions = Actions.tabulate(rows, height, width, CPU)
    for row, action in enumerate(rows, start=1):
        ours = act(images, actions, torch.full((len(images),), row), pick=pick)
        theirs = torch.stack([do_in_pillow(*action, image) for image in images])
        assert ours.dtype == torch.uint8
        assert torch.equal(ours, theirs), f"{action}: off by {(ours.int() - theirs.int()).abs().max()}"


@settings(max_examples=40, deadline=None)
@given(
    greys=st.lists(st.integers(0, 255), min_size=1, max_size=12),
    side=st.integers(3, 40),
    number=st.integers(0, 2**32 - 1),
)
def test_what_depends_on_the_image_equals_pillow_on_any_greys(greys, side, number):
    image = torch.from_numpy(np.random.default_rng(number).choice(greys, (3, side, side)).astype(np.uint8))
    rows = [("autocontrast", 0, 1), ("equalize", 0, 1), ("contrast", 9, 1), ("sharpness", 9, 1)]
    actions = Actions.tabulate(rows, side, side, CPU)
    ours = act(image.expand(len(rows), -1, -1, -1), actions, torch.arange(1, len(rows) + 1), pick=False)
    assert torch.equal(ours, torch.stack([do_in_pillow(*row, image) for row in rows]))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("pick", [True, False])
def test_a_batch_of_mixed_actions_equals_the_images_one_by_one(device, pick):
    rows = AutoAugment().actions
    images = make_images().repeat(8, 1, 1, 1)
    chosen = torch.randint(len(rows) + 1, (len(images),), generator=seed(0))
    actions = Actions.tabulate(rows, 32, 32, torch.device(device))
    ours = act(images.to(device), actions, chosen.to(device), pick=pick).cpu()
    theirs = torch.stack(
        [do_in_pillow(*rows[c - 1], image) if c else image for image, c in zip(images, chosen, strict=True)]
    )
    assert torch.equal(ours, theirs)


def expect_pairs(policy, actions):
    """The probability of every pair of actions under the policy."""
    law: Counter[tuple[int, int]] = Counter()
    number = {action: row for row, action in enumerate(actions, start=1)}
    for sub_policy in policy:
        slots = []
        for name, probability, level in sub_policy:
            signed = [(number[name, level, sign], probability / 2) for sign in (1, -1)]
            slots.append([(0, 1 - probability), *signed])
        for (first, p), (second, q) in product(*slots):
            law[first, second] += p * q / len(policy)
    return law


def test_draws_follow_the_law_of_the_policy():
    augment, batch = AutoAugment(), 200_000
    drawn = Counter(map(tuple, augment.draw(batch, seed(0), CPU).tolist()))
    law = {pair: p for pair, p in expect_pairs(augment.policy, augment.actions).items() if p > 0}
    assert sum(law.values()) == pytest.approx(1)
    assert set(drawn) <= set(law), "a pair was drawn that no sub-policy holds"
    chi2 = sum((drawn[pair] - batch * p) ** 2 / (batch * p) for pair, p in law.items())
    freedom = len(law) - 1
    assert abs(chi2 - freedom) < 5 * (2 * freedom) ** 0.5


def test_policy_as_published():
    assert len(CIFAR10_POLICY) == 25
    assert all(len(sub_policy) == 2 for sub_policy in CIFAR10_POLICY)
    counts = Counter(name for sub_policy in CIFAR10_POLICY for name, _, _ in sub_policy)
    # As printed in the table of the AutoAugment paper.
    assert counts == {
        "equalize": 9,
        "autocontrast": 7,
        "translate_y": 5,
        "color": 5,
        "brightness": 4,
        "sharpness": 5,
        "solarize": 4,
        "invert": 3,
        "contrast": 2,
        "translate_x": 2,
        "shear_y": 2,
        "posterize": 1,
        "rotate": 1,
    }


def test_magnitudes():
    assert find_magnitude("rotate", 9, -1) == -30
    assert find_magnitude("translate_x", 9) * 331 == pytest.approx(150)
    assert [find_magnitude("posterize", level) for level in range(10)] == [8, 8, 7, 7, 6, 6, 5, 5, 4, 4]
    assert find_magnitude("solarize", 0, -1) == 256
    assert find_magnitude("solarize", 9) == 0
    assert all(find_magnitude(name, 0) == 0 for name in SIGNED)


def test_autoaugment_refuses_what_is_not_rgb_bytes():
    for images in (torch.rand(2, 3, 8, 8), torch.zeros(2, 1, 8, 8, dtype=torch.uint8), torch.zeros(3, 8, 8)):
        with pytest.raises(ValueError, match=r"AutoAugment.*RGB.*uint8"):
            AutoAugment()(images, seed(0))


def test_crop_takes_every_window_of_the_padded_image_equally_often():
    batch, pad = 8_100, 4
    image = torch.arange(1, 65, dtype=torch.uint8).view(1, 8, 8)
    crops = RandomCrop(pad)(image.expand(batch, 1, 8, 8), seed(0))
    padded = torch.nn.functional.pad(image, (pad,) * 4)
    windows = {tuple(padded[0, y : y + 8, x : x + 8].flatten().tolist()) for y in range(9) for x in range(9)}
    counts = Counter(tuple(crop.flatten().tolist()) for crop in crops)
    assert set(counts) == windows
    assert sum((n - 100) ** 2 / 100 for n in counts.values()) < 80 + 5 * 160**0.5


def test_flip_mirrors_about_half_and_keeps_the_rest():
    images = make_images()[:1].repeat(10_000, 1, 1, 1)
    flipped = Flip()(images, seed(0))
    mirrored = (flipped == images.flip(-1)).flatten(1).all(1)
    kept = (flipped == images).flatten(1).all(1)
    assert bool((mirrored ^ kept).all())
    assert mirrored.sum().item() == pytest.approx(5_000, abs=5 * 50)
    assert torch.equal(Flip(0.0)(images, seed(0)), images)
    assert torch.equal(Flip(1.0)(images, seed(0)), images.flip(-1))


@pytest.mark.parametrize("normalise", [PAPER[0].transforms[3], Normalise((0.1, 0.2, 0.3), (1.0, 0.5, 2.0))])
def test_normalise_takes_out_mean_and_deviation(normalise):
    images = make_images()
    mean, std = (torch.tensor(v, dtype=torch.float64)[:, None, None] for v in (normalise.mean, normalise.std))
    ours = normalise(images)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours.double(), (images.double() / 255 - mean) / std, atol=2e-6, rtol=0)
    assert torch.equal(Normalise(list(normalise.mean), np.array(normalise.std))(images), ours)


@pytest.mark.parametrize("length", [8, 16, 5, 1, 0])
def test_cutout_cuts_one_square_clipped_at_the_border(length):
    images = torch.ones(4_000, 3, 32, 32)
    holes = Cutout(length)(images, seed(0)) == 0
    assert torch.equal(holes.any(1), holes.all(1)), "the channels are cut alike"
    rows, columns = holes[:, 0].any(2).sum(1), holes[:, 0].any(1).sum(1)
    assert torch.equal(holes[:, 0].sum((1, 2)), rows * columns), "a hole is a rectangle"
    area = holes[:, 0].sum((1, 2))
    assert area.max() == length**2
    # The centre is uniform, so a whole square fits with the chance that both its coordinates allow.
    chance = ((33 - length) / 32) ** 2 if length else 1.0
    whole = (area == length**2).double().mean().item()
    assert whole == pytest.approx(
        min(chance, 1.0), abs=5 * (chance * (1 - min(chance, 1)) / 4_000) ** 0.5 + 1e-9
    )


@pytest.mark.parametrize("recipe", PAPER)
@pytest.mark.parametrize("device", DEVICES)
def test_recipes_repeat_from_a_seed_and_differ_between_images(recipe, device):
    images = make_images()[:1].repeat(64, 1, 1, 1).to(device)
    before = images.clone()
    first, again, other = (recipe(images, seed(n, device)) for n in (1, 1, 2))
    assert first.shape == images.shape
    assert first.dtype == torch.float32
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(images, before), "the caller's images were changed"
    assert len({tuple(image.flatten().tolist()) for image in first.cpu()}) > 60


def test_a_default_type_of_numbers_changes_nothing() -> None:
    images = torch.randint(
        256, (64, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)
    )
    # Statistics of their own, as tables made once are kept.
    augment = Augmentation(
        (AutoAugment(), Flip(), ColourJitter(), Normalise((0.1, 0.2, 0.3), (0.4, 0.5, 0.6)))
    )
    torch.set_default_dtype(torch.float64)
    try:
        within = augment(images, torch.Generator().manual_seed(0))
    finally:
        torch.set_default_dtype(torch.float32)
    assert within.dtype == torch.float32
    assert torch.equal(within, augment(images, torch.Generator().manual_seed(0)))
