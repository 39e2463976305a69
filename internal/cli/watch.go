package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/gemworker/gem/client/view"
	"github.com/gemworker/gem/internal/postgres/pgpool"
	"github.com/gemworker/gem/internal/store"
	"github.com/spf13/cobra"
)

const watchEvery = 2 * time.Second

// report is a command that shows data of package view, as a text or as JSON, once or repeatedly.
type report[T any] struct {
	asJSON, watch bool
	primary       *bool // whether it is read from the primary alone; nil: always
	read          func(context.Context, view.DB) (T, error)
	text          func(w io.Writer, value T) error
	hint          func(value T) string // on stderr, for people; may be nil
}

// flags gives a command the flags --json and --watch.
func (v *report[T]) flags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&v.asJSON, "json", false, "print the JSON of the dashboard's page, at its address with .json")
	cmd.Flags().BoolVar(&v.watch, "watch", false, "repeat every 2 s, until Ctrl-C; with --json, one document per line")
}

func (v *report[T]) run(cmd *cobra.Command) error {
	ctx, out := cmd.Context(), cmd.OutOrStdout()
	var replica *view.Replica
	connectTo := connect
	if v.primary != nil && !*v.primary {
		standby, err := openReplica(ctx)
		if err != nil {
			return err
		}
		if standby != nil {
			defer standby.Close()
			replica = view.NewReplica(standby)
			connectTo = connectWhenNeeded
		}
	}
	db, err := connectTo(ctx)
	if err != nil {
		return err
	}
	defer db.Close()
	if v.watch && !v.asJSON && isTerminal(out) {
		fmt.Fprint(out, "\x1b[2J")
	}
	for {
		var value T
		read := func(ctx context.Context, db view.DB) (err error) {
			value, err = v.read(ctx, db)
			return err
		}
		if replica == nil {
			err = view.Read(ctx, db, read)
		} else {
			var source view.Source
			if source, err = replica.Read(ctx, db, read); err == nil {
				fmt.Fprintln(cmd.ErrOrStderr(), source)
			}
		}
		passes := errors.Is(err, view.ErrTooSlow) || pgpool.IsAway(err)
		switch {
		case v.watch && ctx.Err() != nil:
			return nil // Ctrl-C ends it
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

func (v *report[T]) show(out io.Writer, value T) error {
	switch {
	case v.asJSON && v.watch:
		return writeJSON(out, value, "")
	case v.asJSON:
		return printJSON(out, value)
	case !v.watch:
		return v.text(out, value)
	}
	var text bytes.Buffer
	if err := v.text(&text, value); err != nil {
		return err
	}
	if isTerminal(out) { // over the previous text, so that nothing flickers
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

// notSeen returns why nothing can be shown.
func notSeen(err error) error {
	var wrong *view.FilterError
	switch {
	case errors.As(err, &wrong):
		return usage("--%s: %s", strings.Replace(wrong.Name, "q", "text", 1), wrong.Message)
	case errors.Is(err, view.ErrTooSlow):
		return view.ErrTooSlow
	case store.IsForbidden(err):
		return fmt.Errorf("%w\nOnly the owner of the tables and members of gem_monitor may see this: create role ada login "+
			"password '…' in role gem_monitor", refusal(err))
	}
	return refusal(err)
}
