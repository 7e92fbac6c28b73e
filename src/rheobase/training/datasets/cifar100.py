"""CIFAR-100."""

from rheobase.training.datasets.cifar import Cifar

SOURCE = Cifar(
    name="cifar100",
    url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
    md5="eb9058c3a382ffc7106e4002c42a8d85",
    folder="cifar-100-python",
    meta="meta",
    prefix="fine_",
    train={"train": 50_000},
    test={"test": 10_000},
    classes=100,
    mean=(129.3 / 255, 124.1 / 255, 112.4 / 255),
    std=(68.2 / 255, 65.4 / 255, 70.4 / 255),
    cutout=8,
    digests={
        "train": "6d2a03c47c105e4c34d3a2ff16c2803e8df0e5d6fa0c631e46663a327aeac573",
        "test": "381b7d98ce1e9b98232a8df0db0a22992654c39ff2433270656ab8ace5a45e65",
    },
)
