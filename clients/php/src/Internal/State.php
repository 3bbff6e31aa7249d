<?php

declare(strict_types=1);

namespace Hapax\Internal;

use Hapax\HapaxException;

/** @internal What a client has in one process. A child of fork begins with another one. */
final class State
{
    private const MAX_TAGS = 10_000;

    public readonly Servers $servers;
    private readonly string $here;
    /** @var array<string, Line> */
    private array $lines = [];

    public function __construct(private readonly array $options, private bool $isClosed, ?string $store)
    {
        $this->here = Process::here();
        $this->servers = new Servers($options, $store);
    }

    public function isHere(): bool
    {
        return $this->here === Process::here();
    }

    /** What the child has of what its parent had. */
    public function child(): self
    {
        return new self($this->options, $this->isClosed, $this->servers->store);
    }

    public function line(string $name, string $path): Line
    {
        if (count($this->lines) >= self::MAX_TAGS && !isset($this->lines["t$name"])) {
            throw new HapaxException('limit_exceeded', 'this client has ' . self::MAX_TAGS . ' tags already; make another one for more', true);
        }
        // A name of digits would be a number as a key.
        return $this->lines["t$name"] ??= new Line($this->servers, $this->options, $path);
    }

    public function check(): self
    {
        return $this->isClosed ? throw new HapaxException('closed', 'the client was closed', true) : $this;
    }

    public function close(): void
    {
        $this->isClosed = true;
        $until = Process::now() + 1.0; // do not wait longer
        foreach ($this->lines as $line) {
            $line->handBack($until);
        }
        $this->lines = [];
        $this->servers->close();
    }
}
