"""Tests of the networks: their size, their shapes, how they start, and how they are found by name."""

import math
import sys

import pytest
import torch
from torch import nn

import rheobase
from rheobase.training import Recipe, datasets, find_recipe, models, train


def count_units(model: nn.Module, channels: int, size: int) -> list[int]:
    """Units of one image at every activation, in the order of the calls."""
    units: list[int] = []
    for module in model.modules():
        if isinstance(module, nn.ReLU):
            module.register_forward_hook(lambda _m, _i, output: units.append(output[0].numel()))
    model.eval()(torch.zeros(1, channels, size, size, device="meta"))
    return units


@pytest.mark.parametrize(
    ("name", "activations", "units"),
    [("vgg16", 15, 284_672), ("resnet20", 19, 188_416), ("resnet18", 17, 557_056)],
)
def test_networks_have_the_published_layers_and_units(name, activations, units):
    with torch.device("meta"):
        model = models.build(name)
    counts = count_units(model, 3, 32)
    assert len(counts) == activations
    assert sum(counts) == units
    assert len([m for m in model.modules() if isinstance(m, nn.ReLU)]) == activations, "a ReLU is shared"


@pytest.mark.parametrize("name", ["vgg16", "resnet18", "resnet20"])
@pytest.mark.parametrize(("size", "classes"), [(32, 10), (32, 100), (224, 1000)])
def test_networks_give_one_row_of_logits_per_image(name, size, classes):
    with torch.device("meta"):
        model = models.build(name, classes, size=size)
        assert model(torch.zeros(2, 3, size, size)).shape == (2, classes)


@pytest.mark.parametrize("name", models.names())
def test_networks_train_every_weight(name):
    torch.manual_seed(0)
    model = models.build(name)
    channels, size = (1, 8) if name.startswith("small") else (3, 32)
    model(torch.randn(2, channels, size, size)).square().sum().backward()
    assert [n for n, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0] == []


@pytest.mark.parametrize("name", models.names())
def test_weights_start_as_published(name):
    torch.manual_seed(0)
    model = models.build(name)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            law = (2 / (module.out_channels * module.kernel_size[0] ** 2)) ** 0.5
            # Six standard errors of a sample's standard deviation.
            assert module.weight.std().item() == pytest.approx(
                law, rel=6 / (2 * module.weight.numel()) ** 0.5
            )
        elif isinstance(module, nn.Linear):
            assert not module.bias.any()
        elif isinstance(module, nn.BatchNorm2d):
            assert bool((module.weight == 1).all())
            assert not module.bias.any()


def test_vgg_options():
    with torch.device("meta"):
        model = models.build("vgg16", pool="max", dropout=0.3)
    assert len([m for m in model.modules() if isinstance(m, nn.MaxPool2d)]) == 5
    assert {m.p for m in model.modules() if isinstance(m, nn.Dropout)} == {0.3}
    with pytest.raises(ValueError, match="multiple of 32, got 40"):
        models.build("vgg16", size=40)
    with pytest.raises(ValueError, match=r"'mean'.*average, max"):
        models.build("vgg16", pool="mean")


def test_large_images_get_the_strided_stem():
    with torch.device("meta"):
        small, large = models.build("resnet18", size=64), models.build("resnet18", size=224)
        assert small.stem(torch.zeros(1, 3, 64, 64)).shape == (1, 64, 64, 64)
        assert large.stem(torch.zeros(1, 3, 224, 224)).shape == (1, 64, 56, 56)
    with pytest.raises(ValueError, match=r"size.*got 0"):
        models.build("resnet20", size=0)


def test_small_network_refuses_a_size_it_cannot_halve():
    with pytest.raises(ValueError, match="multiple of 4, got 10"):
        models.build("small", size=10)


def test_unknown_name_suggests_the_nearest():
    with pytest.raises(ValueError, match=r"'VGG-16'.*'vgg16'"):
        models.build("VGG-16")
    with pytest.raises(ValueError, match=r"'transformer'; known.*vgg16.*package\.module:callable"):
        models.build("transformer")


def test_options_a_builder_does_not_take_are_refused():
    with pytest.raises(TypeError, match=r"resnet20 .*'pool'.*size"):
        models.build("resnet20", pool="max")
    with pytest.raises(ValueError, match="classes=0"):
        models.build("resnet20", classes=0)


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    (tmp_path / "own_networks.py").write_text(
        "from torch import nn\n"
        "def named(classes, width=4): return nn.Sequential(nn.Linear(width, classes))\n"
        "def customary(num_classes): return nn.Linear(2, num_classes)\n"
        "def loose(**options): return nn.Linear(2, options['num_classes'])\n"
        "def fixed(): return nn.Linear(2, 3)\n"
        "def wrong(): return 'a network'\n"
        "number = 3\n"
        "built = nn.Linear(3, 3)\n"
    )
    (tmp_path / "broken_networks.py").write_text("import no_such_module_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("own_networks", None)


@pytest.mark.usefixtures("own_module")
def test_networks_of_your_own():
    assert models.build("own_networks:named", 7, width=5)[0].weight.shape == (7, 5)
    assert models.build("own_networks:customary", 7).out_features == 7
    assert models.build("own_networks:loose", 7).out_features == 7
    assert models.build("own_networks:fixed", 7).out_features == 3


@pytest.mark.usefixtures("own_module")
@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("own_networks:", ValueError, "package.module:callable"),
        (":named", ValueError, "package.module:callable"),
        ("no_such_networks:named", ValueError, "'no_such_networks'"),
        ("own_networks.deeper:named", ValueError, "'own_networks.deeper'"),
        ("own_networks:nmaed", ValueError, "'nmaed'.*own_networks.*'named'"),
        ("own_networks:number", TypeError, "is a int"),
        ("own_networks:built", TypeError, "is a Linear"),
        ("own_networks:wrong", TypeError, "str.*torch.nn.Module"),
        ("broken_networks:named", ModuleNotFoundError, "no_such_module_at_all"),
    ],
)
def test_what_cannot_be_imported_says_why(name, error, message):
    with pytest.raises(error, match=message):
        models.build(name)


SMALL = {
    "vit": {"width": 16, "depth": 2, "heads": 2, "size": 8},
    "convnext": {"widths": (8, 16), "depth": 1},
}


@pytest.mark.parametrize("name", SMALL)
def test_transformers_learn_and_convert(name: str) -> None:
    torch.manual_seed(0)
    digits = datasets.load("digits").train.take(300)
    recipe = Recipe(epochs=6, batch_size=50, learning_rate=5e-3, warmup_epochs=1, optimiser="adamw")
    trained = train(models.build(name, channels=1, **SMALL[name]), digits, recipe, progress=False)
    assert trained.history[-1].loss < 0.8 * trained.history[0].loss
    x = digits.normalise(digits.images[:16])
    snn = rheobase.convert(trained.model, "sigma-delta", x)
    run = rheobase.simulate(snn, x, 64, at=[64])
    assert torch.equal(run.logits[-1], snn.limit(x))
    agree = (run.logits[-1].argmax(1) == trained.model(x).argmax(1)).float().mean()
    assert agree >= 0.8


@pytest.mark.parametrize("name", ["vit", "convnext"])
@pytest.mark.parametrize("classes", [10, 100])
def test_transformers_have_a_recipe_for_each_dataset(name: str, classes: int) -> None:
    recipe = find_recipe(f"{name}-cifar{classes}")
    assert recipe.optimiser == "adamw"
    with torch.device("meta"):
        assert models.build(name, classes)(torch.zeros(2, 3, 32, 32)).shape == (2, classes)


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 4, got 10"):
        models.build("vit", size=10)
    with pytest.raises(ValueError, match=r"30.*4"):
        models.build("vit", width=30)


@pytest.mark.parametrize("name", ["vgg16", "resnet20", "small"])
def test_initial_weights_are_kaiming_or_torchs_own(name):
    def draw(**options):
        torch.manual_seed(0)
        return models.build(name, **options)

    def deviations(model):
        convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
        return [
            (m.weight.std().item(), math.prod(m.kernel_size) * m.out_channels, m.weight[0].numel())
            for m in convolutions
        ]

    for std, outputs, _ in deviations(draw()):
        assert std == pytest.approx(math.sqrt(2 / outputs), rel=0.2)
    for std, _, inputs in deviations(draw(initial_weights="torch")):
        assert std == pytest.approx(1 / math.sqrt(3 * inputs), rel=0.2)
    with pytest.raises(ValueError, match=r"initial weights 'zeros'.*kaiming"):
        draw(initial_weights="zeros")
