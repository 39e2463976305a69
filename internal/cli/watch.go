package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/gemworker/gem/internal/pgpool"
	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/internal/watch"
	"github.com/spf13/cobra"
)

const watchEvery = 2 * time.Second

// view is a command that shows what package watch reads, as a text or as JSON, once or again and again.
type view[T any] struct {
	asJSON, watch bool
	read          func(context.Context, watch.DB) (T, error)
	text          func(w io.Writer, value T) error
	hint          func(value T) string // on the standard error, for people; nil for none
}

// flags gives a command the flags --json and --watch.
func (v *view[T]) flags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&v.asJSON, "json", false, "print JSON, as the dashboard's page has it at its address with .json")
	cmd.Flags().BoolVar(&v.watch, "watch", false, "show it again every 2 s, until Ctrl-C; with --json a document a line")
}

func (v *view[T]) run(cmd *cobra.Command) error {
	ctx, out := cmd.Context(), cmd.OutOrStdout()
	db, err := connect(ctx)
	if err != nil {
		return err
	}
	defer db.Close()
	if v.watch && !v.asJSON && isTerminal(out) {
		fmt.Fprint(out, "\x1b[2J")
	}
	for {
		var value T
		err := watch.Read(ctx, db, func(ctx context.Context, db watch.DB) (err error) {
			value, err = v.read(ctx, db)
			return err
		})
		passes := errors.Is(err, watch.ErrTooSlow) || pgpool.IsAway(err)
		switch {
		case v.watch && ctx.Err() != nil:
			return nil // Ctrl-C is how it ends
		case err == nil:
			err = v.show(out, value)
		case v.watch && passes:
			fmt.Fprintf(cmd.ErrOrStderr(), "%s; asking again\n", strings.TrimSuffix(notSeen(err).Error(), "."))
			err = nil
		}
		if err != nil {
			return notSeen(err)
		}
		if !v.watch {
			if v.hint != nil && !v.asJSON {
				if said := v.hint(value); said != "" {
					fmt.Fprintln(cmd.ErrOrStderr(), said)
				}
			}
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(watchEvery):
		}
	}
}

func (v *view[T]) show(out io.Writer, value T) error {
	switch {
	case v.asJSON && v.watch:
		e := json.NewEncoder(out)
		e.SetEscapeHTML(false)
		return e.Encode(value)
	case v.asJSON:
		return printJSON(out, value)
	case !v.watch:
		return v.text(out, value)
	}
	var text bytes.Buffer
	if err := v.text(&text, value); err != nil {
		return err
	}
	if isTerminal(out) { // over the text of before, so that nothing flickers
		fmt.Fprint(out, "\x1b[H"+strings.ReplaceAll(text.String(), "\n", "\x1b[K\n")+"\x1b[J")
		return nil
	}
	_, err := fmt.Fprintln(out, text.String())
	return err
}

func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// notSeen says why nothing can be shown.
func notSeen(err error) error {
	var wrong *watch.FilterError
	switch {
	case errors.As(err, &wrong):
		return usage("--%s: %s", strings.Replace(wrong.Name, "q", "text", 1), wrong.Message)
	case errors.Is(err, watch.ErrTooSlow):
		return watch.ErrTooSlow
	case store.HasCode(err, "42501"):
		return fmt.Errorf("%w\nThe owner of the tables may see this, and members of gem_monitor: create role ada login password '…' in role gem_monitor", refusal(err))
	}
	return refusal(err)
}
