"""What a translation model can be made of."""

from typing import Any

from transformers import PreTrainedConfig

from babn.errors import ConfigError

CHOICES = {
    "attention": ("softmax", "va-enum", "va-sample"),
    "estimator": ("reinforce", "gumbel"),
    "prediction": ("enum", "soft"),
}


class TranslationConfig(PreTrainedConfig):
    """Sizes of Deng et al. (2018), with one vocabulary for both languages.

    Args:
        vocab_size: Pieces of words.
        embedding_size: Size of a piece's vector.
        encoder_size: Size of each direction of the encoder.
        decoder_size: Size of the decoder, and of the layer before the output.
        attention_size: Size in which decoder states and source positions are compared.
        layers: Of the encoder, of the decoder and of the inference network.
        dropout: Rate on vectors, between layers and before the output.
        attention: `"softmax"`, which `babn.convert` can replace; or variational attention, trained
            by enumeration of all alignments (`"va-enum"`) or with samples (`"va-sample"`).
        kl_weight: Weight of the divergence of variational attention; may be changed in training.
        estimator: How `"va-sample"` gets gradients of the inference network: `"reinforce"`, or
            `"gumbel"` for straight-through Gumbel-softmax.
        baseline: Whether `"reinforce"` subtracts the log-probability under soft attention.
        train_samples: Alignments that `"va-sample"` draws for each target position.
        gumbel_temperature: Of `"gumbel"`.
        prediction: How variational attention predicts: by the mean over alignments of words'
            probabilities (`"enum"`), or by the words' probabilities at the mean of source
            positions (`"soft"`), which is faster and an approximation.
        initializer_range: Weights start uniform between this and its negative.
        tie_word_embeddings: Whether the output has the weights of the vectors; the layer before it
            is then of their size.
        pad_token_id: Number of the padding token.
        bos_token_id: Number of the token that the decoder begins with.
        eos_token_id: Number of the token that ends a target.
        **kwargs: Further fields that every model of transformers has.
    """

    model_type = "babn-translation"

    def __init__(
        self,
        vocab_size: int = 14_000,
        embedding_size: int = 512,
        encoder_size: int = 512,
        decoder_size: int = 768,
        attention_size: int = 512,
        layers: int = 2,
        dropout: float = 0.3,
        attention: str = "softmax",
        kl_weight: float = 1.0,
        estimator: str = "reinforce",
        baseline: bool = True,
        train_samples: int = 1,
        gumbel_temperature: float = 0.5,
        prediction: str = "enum",
        initializer_range: float = 0.1,
        tie_word_embeddings: bool = False,
        pad_token_id: int = 0,
        bos_token_id: int = 2,
        eos_token_id: int = 3,
        **kwargs: Any,
    ) -> None:
        kwargs = {"is_encoder_decoder": True, "decoder_start_token_id": bos_token_id} | kwargs
        super().__init__(**kwargs)
        self.vocab_size = vocab_size
        self.embedding_size = embedding_size
        self.encoder_size = encoder_size
        self.decoder_size = decoder_size
        self.attention_size = attention_size
        self.layers = layers
        self.dropout = dropout
        self.attention = attention
        self.kl_weight = kl_weight
        self.estimator = estimator
        self.baseline = baseline
        self.train_samples = train_samples
        self.gumbel_temperature = gumbel_temperature
        self.prediction = prediction
        self.initializer_range = initializer_range
        self.tie_word_embeddings = tie_word_embeddings
        self.pad_token_id = pad_token_id
        self.bos_token_id = bos_token_id
        self.eos_token_id = eos_token_id
        self._check()

    def _check(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ConfigError(
                    f"{name}={getattr(self, name)!r} is not possible. Choose one of "
                    f"{list(choices)}."
                )

    @property
    def variational(self) -> bool:
        """Whether alignments are latent variables with an inference network."""
        return self.attention != "softmax"

    @property
    def output_size(self) -> int:
        """Size of the layer before the output."""
        return self.embedding_size if self.tie_word_embeddings else self.decoder_size
