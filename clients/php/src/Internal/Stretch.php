<?php

declare(strict_types=1);

namespace Hapax\Internal;

/** @internal Numbers that were taken with one request, and how many of them are used. */
final class Stretch
{
    public readonly int $count;
    public readonly bool $keeps;
    public readonly ?string $receipt;
    public readonly int $returnable;
    public float $began = 0.0; // when it became the current one
    private int $used = 0;
    private int $first = 0;
    private int $delta = 0;
    /** @var list<int>|null */
    private ?array $ids = null;
    private readonly float $ends;
    private readonly float $endsWall;

    /** @param array{float, float, int} $sent the clocks when so many were asked for */
    public function __construct(array $answer, array $sent)
    {
        [$clock, $wall, $asked] = $sent;
        $count = $answer['count'] ?? null;
        if (!is_int($count) || $count < 1 || $count > $asked) {
            throw new \UnexpectedValueException('count');
        }
        if (isset($answer['first'])) {
            $this->first = self::integer($answer['first']);
            $this->delta = self::integer($answer['delta'] ?? null);
            if (!is_int($this->first + ($count - 1) * $this->delta)) { // else it is a float
                throw new \UnexpectedValueException('first');
            }
        } else {
            $ids = $answer['ids'] ?? null;
            if (!is_array($ids) || !array_is_list($ids) || count($ids) !== $count) {
                throw new \UnexpectedValueException('ids');
            }
            $this->ids = array_map(self::integer(...), $ids);
        }
        $valid = $answer['valid_for'] ?? 0;
        if (!(is_int($valid) || is_float($valid)) || !($valid >= 0)) {
            throw new \UnexpectedValueException('valid_for');
        }
        [$this->count, $this->keeps] = [$count, $valid > 0];
        $this->receipt = is_string($answer['receipt'] ?? null) ? $answer['receipt'] : null;
        $this->returnable = is_int($answer['returnable'] ?? null) ? $answer['returnable'] : 0;
        [$this->ends, $this->endsWall] = [$clock + $valid, $wall + $valid];
    }

    private static function integer(mixed $text): int
    {
        if (!is_string($text) || !preg_match('/^[1-9][0-9]{0,18}$/D', $text) || (string) (int) $text !== $text) {
            throw new \UnexpectedValueException(substr(var_export($text, true), 0, 40) . ' is no number');
        }
        return (int) $text;
    }

    /** The next number, or null. */
    public function next(): ?int
    {
        // Counted before anything else: the handler of a signal may take numbers amid this.
        $at = $this->used++;
        if ($at >= $this->count) {
            return null;
        }
        return $this->ids === null ? $this->first + $at * $this->delta : $this->ids[$at];
    }

    public function left(): int
    {
        return max(0, $this->count - $this->used);
    }

    /** How many are left. From here on none is. */
    public function giveUp(): int
    {
        [$left, $this->used] = [$this->left(), $this->count];
        return $left;
    }

    public function isOver(): bool
    {
        // The clock that only goes forward may stand still while a machine sleeps.
        return State::now() >= $this->ends || microtime(true) >= $this->endsWall;
    }
}
