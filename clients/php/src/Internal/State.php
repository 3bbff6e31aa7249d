<?php

declare(strict_types=1);

namespace Hapax\Internal;

use Hapax\HapaxException;

/** @internal What a client has in one process, and what tells processes apart. A child of fork begins with another one. */
final class State
{
    private const MAX_TAGS = 10_000;

    public readonly Servers $servers;
    private readonly string $here;
    /** @var array<string, Line> */
    private array $lines = [];

    private bool $isClosed;
    private float $looked = -INF; // when here() last was what it is

    /** @param self|null $parent what the process had that this one is a child of */
    public function __construct(private readonly array $options, ?self $parent)
    {
        $this->here = self::here();
        $this->isClosed = $parent?->isClosed ?? false;
        $this->servers = new Servers($options, $parent?->servers->store);
    }

    public function isHere(): bool
    {
        [$now, $used] = [self::now(), getrusage()];
        $had = $used['ru_utime.tv_sec'] + $used['ru_stime.tv_sec'] + 1e-6 * ($used['ru_utime.tv_usec'] + $used['ru_stime.tv_usec']);
        // A child of fork begins without any time of the processor, and gets no more than passes; 100 is for threads.
        if ($had <= 100 * ($now - $this->looked)) {
            if ($this->here !== self::here()) {
                return false;
            }
            $this->looked = $now;
        }
        return true;
    }

    /** What no other process has: its ID, which a later one may repeat, and the time of its start. */
    private static function here(): string
    {
        // Not /proc/self/stat: PHP remembers where the link leads, which after a fork is to the parent.
        $id = (string) @readlink('/proc/self');
        $stat = $id === '' ? '' : (string) @file_get_contents("/proc/$id/stat", false, null, 0, 1024);
        // The name, which is in parentheses, may hold anything.
        $start = explode(' ', substr($stat, (int) strrpos($stat, ')')), 22)[20] ?? '';
        return getmypid() . " $id $start";
    }

    /** Seconds of a clock that only goes forward. */
    public static function now(): float
    {
        return hrtime(true) / 1e9;
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
        $until = self::now() + 1.0; // do not wait longer
        foreach ($this->lines as $line) {
            $line->handBack($until);
        }
        $this->lines = [];
        $this->servers->close();
    }
}
