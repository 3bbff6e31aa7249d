<?php

declare(strict_types=1);

namespace Hapax;

/**
 * Says why there is no number. Branch on its errorCode, which is the server's, or one of
 * invalid_argument, invalid_tag, closed and unavailable.
 */
final class HapaxException extends \RuntimeException
{
    /**
     * @param bool $final asking again will not help
     * @param int $status of HTTP; 0: no server said so
     * @param float $retryAfter seconds
     */
    public function __construct(public readonly string $errorCode, string $detail, public readonly bool $final = false, public readonly int $status = 0, public float $retryAfter = 0.0)
    {
        parent::__construct($detail === '' ? $errorCode : "$errorCode: $detail");
    }

    /** @internal */
    public static function invalid(string $detail): self
    {
        return new self('invalid_argument', $detail, true);
    }
}
