<?php

declare(strict_types=1);

namespace Hapax\Doctrine;

/** Names the tag that an entity's numbers have. */
#[\Attribute(\Attribute::TARGET_CLASS)]
final class Tag
{
    public function __construct(public readonly string $name)
    {
    }
}
