<?php

declare(strict_types=1);

namespace Hapax\Internal;

use Hapax\HapaxException;

/** @internal What a process has in hand of a tag. */
final class Line
{
    private const MAX_COUNT = 1_000_000;
    private const QUICK = 5.0; // seconds that a stretch lasts, around the ten that it should
    private const SLOW = 20.0;
    private const PAUSE = 0.05; // seconds after all servers were asked in vain
    private const MAX_PAUSE = 1.0;

    private ?Stretch $current = null;
    private ?Stretch $spare = null;
    private ?Exchange $ahead = null; // what was asked for ahead
    private int $step;
    private ?string $last = null; // the latest receipt
    private bool $isDead = false; // it was handed back
    private bool $isBusy = false; // a call fetches; the handler of a signal, amid it, is on its own
    private bool $keeps = true; // false: every number is for the call that takes it
    private int $failures = 0;
    private float $retryAt = 0.0;

    public function __construct(private readonly Servers $servers, private readonly array $options, private readonly string $path)
    {
        $this->step = $options['minStep'];
    }

    /** A number in hand, or null. $first becomes the stretch that it is of, if it is null. */
    public function next(?Stretch &$first): ?int
    {
        for (;;) {
            if (($current = $this->current) !== null) {
                $isOver = $current->isOver();
                if (!$isOver && ($number = $current->next()) !== null) {
                    $first ??= $current;
                    return $number;
                }
                $lasted = State::now() - $current->began;
                if (!$isOver && $lasted < self::QUICK) {
                    $this->step = min($this->options['maxStep'], 2 * $this->step);
                } elseif ($lasted > self::SLOW) {
                    $this->step = max($this->options['minStep'], intdiv($this->step, 2));
                }
            }
            [$this->current, $this->spare] = [$this->spare, null];
            if (($current = $this->current) === null) {
                return null;
            }
            $current->began = State::now(); // amid which the handler of a signal may use it up
        }
    }

    /**
     * Fetches for a call, and waits.
     *
     * @return list<int> numbers that may not be kept, for this call
     */
    public function fetch(int $need, float $until): array
    {
        [$isNested, $this->isBusy] = [$this->isBusy, true];
        $ask = function (int $count) use ($need, $until, $isNested): array {
            $body = $this->body($count) + ($this->options['isShortLived'] && $count === $need ? ['receipt' => false] : []);
            return $this->keep($this->servers->ask("{$this->path}/take", $body, $until, fn (array $answer, array $sent) => new Stretch($answer, $sent)), $need, $isNested);
        };
        try {
            return $this->persist($need, $isNested, $until, $ask);
        } finally {
            $this->isBusy = $isNested;
        }
    }

    /**
     * Asks until a server answers, or the deadline is over.
     *
     * @param bool $isModest whether it asks for no more than is needed
     * @param callable(int): mixed $ask
     */
    public function persist(int $need, bool $isModest, float $until, callable $ask): mixed
    {
        $said = null; // the last that a server said
        for ($failures = 0;;) {
            $count = $isModest || !$this->keeps ? $need : min(self::MAX_COUNT, max($this->step, $need));
            try {
                return $ask($count);
            } catch (HapaxException $e) {
                $said = $said === null || $e->status !== 0 ? $e : $said;
                $isFull = $e->status === 507;
                $wait = $isFull ? 0.0 : max(self::pause($failures++), $e->retryAfter);
                if ($e->final || ($isFull && $count === $need)) {
                    throw $e;
                }
                if (!$isFull && State::now() + $wait >= $until) {
                    throw $said;
                }
                if ($isFull || $e->status === 429) {
                    [$isModest, $this->step] = [true, $this->options['minStep']];
                }
                usleep((int) (1e6 * $wait));
            }
        }
    }

    private static function pause(int $failures): float
    {
        return min(self::MAX_PAUSE, self::PAUSE * 2 ** min($failures, 10));
    }

    /** Asks for the next stretch when half of the current one is used. */
    public function askAhead(): void
    {
        $current = $this->current;
        if (!$this->options['ahead'] || !$this->keeps || $this->ahead !== null || $this->isBusy || $this->spare !== null || $current === null
            || 2 * $current->left() > $current->count || State::now() < $this->retryAt) {
            return;
        }
        $this->ahead = $this->servers->beginAhead("{$this->path}/take", $this->body($this->step));
    }

    /** Takes in hand what was asked for ahead, if it comes by then. It reports whether that is settled. */
    public function awaitAhead(float $until): bool
    {
        [$isNested, $this->isBusy] = [$this->isBusy, true];
        $exchange = $isNested ? null : $this->ahead; // only now, when no handler of a signal reads it, too
        try {
            $stretch = $exchange === null ? null : $this->servers->read($exchange->server, fn () => $exchange, $until, fn (array $answer, array $sent) => new Stretch($answer, $sent));
            if ($stretch !== null) {
                $this->ahead = null;
                $this->keep($stretch, 0, false);
            }
            return $stretch !== null;
        } catch (HapaxException $e) {
            $this->ahead = null;
            $this->retryAt = State::now() + max(self::pause($this->failures++), $e->retryAfter);
            if ($e->status === 429 || $e->status === 507) {
                $this->step = $this->options['minStep'];
            }
            $this->options['logger']?->debug('hapax: fetching ahead: {error}', ['error' => $e->getMessage()]);
            return true;
        } finally {
            $this->isBusy = $isNested;
        }
    }

    /** Hands back what nobody was given. From here on it is dead, whatever the answer. */
    public function handBack(float $until): void
    {
        $this->awaitAhead($until);
        [$current, $last, $this->isDead] = [$this->current, $this->spare ?? $this->current, true];
        $this->current = $this->spare = $this->ahead = null;
        $unused = $last?->giveUp() ?? 0;
        $earlier = $current?->giveUp() ?? 0;
        if ($last !== null && $last->returnable >= $unused + $earlier) {
            $unused += $earlier; // they adjoin
        }
        if ($last?->receipt === null || $unused < 1) {
            return;
        }
        try {
            $this->servers->ask("{$this->path}/handback", ['receipt' => $last->receipt, 'unused' => $unused], $until, fn () => true);
        } catch (HapaxException $e) {
            $this->options['logger']?->debug('hapax: handing back: {error}', ['error' => $e->getMessage()]); // a gap
        }
    }

    private function body(int $count): array
    {
        return ['count' => $count] + ($this->last === null ? [] : ['after' => $this->last]);
    }

    /** @return list<int> */
    private function keep(Stretch $stretch, int $need, bool $isNested): array
    {
        $this->keeps = $this->keeps && $stretch->keeps;
        if ($this->isDead || !$this->keeps || $isNested) {
            return array_map(fn () => $stretch->next(), array_fill(0, $this->isDead ? 0 : min($need, $stretch->count), 0));
        }
        [$this->spare, $this->last, $this->failures, $this->retryAt] = [$stretch, $stretch->receipt, 0, 0.0];
        return [];
    }
}
