"""CIFAR-10."""

from rheobase.training.datasets.cifar import Cifar

SOURCE = Cifar(
    name="cifar10",
    url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
    md5="c58f30108f718f92721af3b95e74349a",
    folder="cifar-10-batches-py",
    meta="batches.meta",
    prefix="",
    train={f"data_batch_{i}": 10_000 for i in range(1, 6)},
    test={"test_batch": 10_000},
    classes=10,
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2023, 0.1994, 0.2010),
    cutout=16,
    digests={
        "train": "55a61f79a40ece2ceda9fb5f9f7078f6ea2fc4952489cef56682bcf92cfcc260",
        "test": "325704b01eb92e1e2a6215ae6a916bb7db7de054af0c496be1c7be2e0fcfbf5f",
    },
)
