<?php

declare(strict_types=1);

namespace Hapax;

/** A number of a tag that has a code. */
final class Code
{
    /** @param string $period empty where numbers never restart */
    public function __construct(public readonly int $id, public readonly string $text, public readonly string $period)
    {
    }
}
